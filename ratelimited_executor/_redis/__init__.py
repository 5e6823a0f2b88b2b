"""What all that speaks to Redis needs: a client, and scripts in Lua."""
