"""Real servers, workers and beats as child processes, for tests.

``waiting``     polls until a condition is true
``journal``     events of many processes in one file
``stage``       the records and gates of task bodies
``processes``   workers, beats and redis-servers with pytest-celery's interface
``commands``    ``celery worker`` and ``celery beat`` as child processes
``servers``     RabbitMQ and PostgreSQL
``tcp``         a proxy that misbehaves, and a scripted server
``lock_nodes``  reads and changes the locks on nodes with a plain Redis client
``kept_nodes``  servers that tests use one after another
``deployment``  broker, result backend, nodes and workers together
``clocks``      lets a redis-server run with a clock that tests step
``metrics``     scrapes a process as Prometheus does
``logs``        adds the logs of all processes to the report of a failed test
"""
