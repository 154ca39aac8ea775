"""EnvPool's dialect: ``make`` and its family, for any env.

    doors          make, make_gym, make_gymnasium, make_dm, make_spec
    config         the keys they take, checked
    spec           what a pool will be like (arrayspec: its arrays, dm_specs: the same for dm_env)
    opening        from a spec to a running pool
    base           what the three faces share (actions, infos, rendering: its parts)
    players        rows of players, where several play in one env (player_actions: their actions)
    gymnasium, classic_gym, dm     the three faces

Where EnvPool would crash, hang or hand out wrong rows, shoal raises an exception.
"""
