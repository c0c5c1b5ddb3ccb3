"""The lab: experiments on top of the library. Nothing outside this folder imports it."""
