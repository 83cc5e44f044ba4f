// Package queue has the plugins that order requests that wait for capacity: fairness policies, ordering policies, and limits of
// use. Only the flowControl section of a configuration refers to them.
//
// Parameters enter; values of package flow, which has the queues, leave. The package itself keeps no request.
package queue
