from clusterctl.cli.main import main

main()
