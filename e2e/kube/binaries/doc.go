// Command binaries is all programs of a Kubernetes control plane in one: it runs the program by whose name it is called.
//
// Arguments enter and are passed on unchanged. It is a module of its own, because Kubernetes pins every library that it uses,
// and Tandem's versions are to be independent of those. It is built for tests only, and starts nothing by itself.
package main
