"""The lab: experiments on top of the library. The library imports it only in ``ausam.__main__``."""
