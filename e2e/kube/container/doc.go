// Package container runs programs as containers of pods, without a container engine: as local processes in Linux namespaces.
// It knows nothing of Kubernetes.
//
// Images, which are folders and files of this machine, and programs of them enter. Processes leave that see what they would
// see in a cluster: their pod's network and address, a root with nothing but the image and the mounts, the given users, and
// no rights.
//
// Everything happens inside namespaces of the test binary, which [Enter] makes: its network has a bridge, tandem0, with
// 10.244.0.1, on which each pod ([Sandbox]) is a network namespace with another address of 10.244.0.0/16. When the test
// binary dies, for whatever reason, everything is removed. The first process of the namespaces only starts the tests and
// reaps orphans.
//
// A container's program is the first process of a PID namespace. Zombies that it inherits and does not reap stay, as in any
// container whose program is not an init. To start it, the test binary runs itself again as a shim, which makes the root and
// becomes the program: a failure of the shim is the error of [Sandbox.Start], and not an exit of the container.
//
// The package does not implement limits of memory and CPU, seccomp, user namespaces, IPv6 beyond link-local addresses,
// terminals, or input; it does not fetch images, and a pod's containers share only the network, the hostname and mounts. It
// needs Linux 5.12, root, and the programs ip and tc of iproute2.
package container
