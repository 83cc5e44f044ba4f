package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp/kube"
	"github.com/tandem-serving/tandem/epp/pool"
)

// endpoints are the flags that name the source of the endpoints. Without them, the configuration names it. There must be exactly one
// source.
type endpoints struct {
	File       string `flag:"endpoints-file" arg:"FILE" help:"file with the endpoints, read again when it changes"`
	Pool       string `flag:"pool-name" arg:"NAME" help:"InferencePool whose pods are the endpoints"`
	Namespace  string `flag:"pool-namespace" arg:"NAME" help:"namespace of the pool or the pods; empty: NAMESPACE in the environment, else the picker's own or the kubeconfig's, else default"`
	Group      string `flag:"pool-group" arg:"GROUP" enum:"inference.networking.k8s.io,inference.networking.x-k8s.io" help:"API group of the InferencePool"`
	Selector   string `flag:"endpoint-selector" arg:"SELECTOR" help:"label selector of the pods that are the endpoints, if there is no InferencePool"`
	Ports      []int  `flag:"endpoint-target-ports" arg:"PORT[,…]" help:"ports of these pods, 1 to 8 of them; each is an endpoint"`
	Kubeconfig string `flag:"kubeconfig" arg:"FILE" help:"kubeconfig of the cluster; empty: KUBECONFIG in the environment, else the cluster that the picker runs in"`
	Policy     string `flag:"policy-file" arg:"FILE" help:"file with InferenceObjectives and InferenceModelRewrites, if there is no InferencePool; read again when it changes"`
}

const (
	// maxTargetPorts is the most ports that an InferencePool may have.
	maxTargetPorts = 8
	// uselessWithoutPods is the problem with a flag about a cluster whose pods are not the endpoints.
	uselessWithoutPods = "is of no use without --pool-name or --endpoint-selector"
	sources            = "--pool-name, --endpoint-selector, --endpoints-file, or the plugin file-discovery as dataLayer.discovery of the configuration"
)

// Validate implements boot.Validator.
func (e *endpoints) Validate(p *boot.Problems) {
	if given := e.given(); len(given) > 1 {
		p.Add(given[1], "cannot be given beside --%s: choose one of them", given[0])
	}
	e.validateCluster(p)
	selector, err := labels.Parse(e.Selector)
	p.Require(err == nil, "endpoint-selector", "%w", err)
	p.Require(e.Selector == "" || err != nil || !selector.Empty(), "endpoint-selector", "takes every pod of the namespace: name labels that only the model servers have")
	p.Require(e.Selector == "" || len(e.Ports) > 0, "endpoint-target-ports", "is needed beside --endpoint-selector: the ports that the pods serve")
	p.Require(e.Selector != "" || len(e.Ports) == 0, "endpoint-target-ports", "is for --endpoint-selector: an InferencePool has targetPorts of its own, and an endpoints file names ports")
	p.Require(len(e.Ports) <= maxTargetPorts, "endpoint-target-ports", "%d ports are too many: at most %d", len(e.Ports), maxTargetPorts)
	for i, port := range e.Ports {
		p.Require(port > 0 && port <= 65535, "endpoint-target-ports", "%d is not a port from 1 to 65535", port)
		p.Require(!slices.Contains(e.Ports[:i], port), "endpoint-target-ports", "%d is there twice", port)
	}
}

func (e *endpoints) validateCluster(p *boot.Problems) {
	p.Require(e.Kubeconfig == "" || e.cluster(), "kubeconfig", uselessWithoutPods)
	if e.Kubeconfig != "" {
		_, _, err := kube.LoadConfig(e.Kubeconfig)
		p.Require(err == nil, "kubeconfig", "%w", err)
	}
}

// validateUnconfigured checks the flags that have no effect if the configuration names the source of the endpoints. It is for a
// configuration that names none.
func (e *endpoints) validateUnconfigured(p *boot.Problems) {
	p.Require(e.Namespace == "" || e.cluster(), "pool-namespace", uselessWithoutPods)
	p.Require(e.Policy == "" || e.Pool == "", "policy-file", "cannot be given beside --pool-name: the objects of the cluster that name the pool are used")
}

// withoutCluster returns the flags that have an effect if the configuration names the source of the endpoints. llm-d's picker does
// not start without --pool-name or --endpoint-selector even then, and uses the name in metrics only, as this one does.
func (e endpoints) withoutCluster() endpoints {
	return endpoints{File: e.File, Group: e.Group, Policy: e.Policy}
}

// given returns the names of the flags that name a source.
func (e *endpoints) given() (flags []string) {
	for _, f := range []struct{ name, value string }{{"pool-name", e.Pool}, {"endpoint-selector", e.Selector}, {"endpoints-file", e.File}} {
		if f.value != "" {
			flags = append(flags, f.name)
		}
	}
	return flags
}

// cluster reports whether the endpoints are pods of a cluster.
func (e *endpoints) cluster() bool { return e.Pool != "" || e.Selector != "" }

// choose returns the file with the endpoints; the zero File means the cluster. discovery is the source that the configuration names,
// nil if none. The error says that there is not exactly one source.
func (e *endpoints) choose(discovery any) (pool.File, error) {
	file, configured := discovery.(*pool.File)
	given := e.given()
	switch {
	case configured && len(given) > 0:
		return pool.File{}, fmt.Errorf("the configuration names file-discovery, and --%s is given too: leave one of them out", strings.Join(given, ", --"))
	case configured:
		return *file, nil
	case len(given) == 0:
		return pool.File{}, errors.New("no source of endpoints is given: give " + sources)
	case e.File != "":
		return pool.File{Path: e.File, WatchFile: true}, nil
	}
	return pool.File{}, nil
}

// options returns the options of the watch, without log and metrics. env looks up environment variables.
func (e *endpoints) options(env func(string) (string, bool)) (options kube.Options, err error) {
	options = kube.Options{Pool: e.Pool, Group: e.Group, TargetPorts: e.Ports}
	if e.Selector != "" {
		if options.Selector, err = labels.Parse(e.Selector); err != nil {
			return options, err
		}
	}
	charts := "" // llm-d's charts set NAMESPACE
	if env != nil {
		charts, _ = env("NAMESPACE")
	}
	config, home, err := kube.LoadConfig(e.Kubeconfig)
	options.Config, options.Namespace = config, cmp.Or(e.Namespace, charts, home)
	return options, err
}
