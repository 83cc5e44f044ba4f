// Package server runs a simulated engine with its ports open: the data port with its API, the admin port, and the side channel.
//
// A configuration and listeners enter; addresses leave. A fault can close the data port, and the port closes when the engine
// ends. Tests and programs start engines here. The package adds no behaviour to packages sim and api.
package server
