// What a reader finds: node tools/search.js SITE QUERY... prints the pages for each query, best first, one line of JSON.
//
// It runs the search worker of the built site itself, with its index, so it ranks as the site does.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
const workers = path.join(site, "assets", "javascripts", "workers");
const worker = fs.readFileSync(path.join(workers, fs.readdirSync(workers).find((name) => name.endsWith(".min.js"))), "utf8");
const index = JSON.parse(fs.readFileSync(path.join(site, "search", "search_index.json"), "utf8"));

const scope = { console, setTimeout, Set, Map, RegExp, Promise };
scope.self = scope;
let receive;
let resolve;
scope.addEventListener = (_, listener) => { receive = listener; };
scope.postMessage = (answer) => resolve(answer);
vm.createContext(scope);
vm.runInContext(worker, scope);
const ask = (message) => new Promise((done) => { resolve = done; receive({ data: message }); });

(async () => {
  await ask({ type: 0, data: { config: index.config, docs: index.docs, options: { suggest: true } } });
  for (const query of queries) {
    const { data } = await ask({ type: 2, data: query });
    console.log(JSON.stringify(data.items.map((sections) => sections[0].location)));
  }
})();
