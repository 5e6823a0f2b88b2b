"""The common part of all modules that use Redis: a client, and scripts in Lua."""
