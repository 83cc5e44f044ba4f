// Package image tests the Dockerfile. It checks what the file says, builds every image from source without a container
// engine, and runs each image's program the way a cluster with the restricted security level does: without rights, on a
// read-only root that holds nothing but the image. Compiling the programs again takes minutes, so `make test` may leave this
// package out.
//
// The package has no code except its tests. It does not install the chart: e2e/kube/cluster does.
package image
