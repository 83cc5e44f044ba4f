// Package container runs programs as containers of pods, without a container engine: in namespaces of Linux, as local
// processes. It knows nothing of Kubernetes.
//
// In go images, which are folders and files of this machine, and what to run of them; out come processes that see what they
// would see in a cluster: their pod's network and address, a root of their own with nothing but the image and the mounts,
// the users they are given, and no rights.
//
// Everything happens inside namespaces of the test binary, which [Enter] makes: its network has a bridge, tandem0, with
// 10.244.0.1, on which each pod ([Sandbox]) is a network namespace with another address of 10.244.0.0/16. When the test
// binary dies, however it does, all of it is gone. The first process in there does nothing but start the tests and reap what
// loses its parent.
//
// A container's program is the first process of a PID namespace, and zombies that it inherits and does not reap stay, as in
// any container whose program is no init. It is started by the test binary, run once more as a shim, which makes the root
// and becomes the program: why it could not is the error of [Sandbox.Start], and not an exit of the container.
//
// What it does not do: limits of memory and CPU, seccomp, user namespaces, IPv6 beyond link-local addresses, terminals,
// input; nor does it fetch images, or let a pod's containers share anything but the network, the hostname and mounts. It
// needs Linux 5.12, root, and the programs ip and tc of iproute2.
package container
