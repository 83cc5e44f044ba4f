// Package conformance holds the plugins that the conformance tests of the Gateway API Inference Extension need of a picker. By
// them a test says which endpoint must be picked, and learns which one served.
//
// A header of the request enters, and the address that the gateway reports; the candidates that the header names leave, and a
// header of the answer. Any client can send the header, so the picker serves these plugins only with a flag of its own.
package conformance
