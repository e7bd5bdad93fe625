"""The bundled training, without torch's compiler."""

import descent_demo  # type: ignore[import-not-found]

descent_demo.train.main()
