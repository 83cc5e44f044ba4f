// Package release tests what a release consists of. It runs the script behind `make release` for one platform, and looks into
// every file that the script writes: the programs, the chart, the build context of the images, the lists of modules and the
// checksums. It also checks the workflows that the forge runs.
//
// The package has no code except its tests. Linking the programs again takes a while, so `make test` leaves that out.
package release
