package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// readIgnored reads the fields without effect, and warns about them.
func (r *reader) readIgnored() {
	for i, gate := range r.doc.FeatureGates {
		r.readGate(fmt.Sprintf("featureGates[%d]", i), gate)
	}
	r.readReplicas()
}

func (r *reader) readGate(path, gate string) {
	name, value, given := strings.Cut(gate, "=")
	why, known := gates[name]
	switch {
	case !known:
		r.problem(path, "there is no feature gate %s%s", quote(name), r.nearest(name, slices.Sorted(maps.Keys(gates))))
	case given && value != "true" && value != "false":
		r.problem(path, "a feature gate is NAME, NAME=true or NAME=false, got %s", quote(gate))
	case value != "false" && name != gateFlow:
		r.warn(path, "%s has no effect: %s", name, why)
	}
}

// readReplicas reads how often replicas exchange their loads.
func (r *reader) readReplicas() {
	layer := r.doc.DataLayer
	switch {
	case layer.PeerDiscovery != nil:
		r.warn("dataLayer.peerDiscovery", "has no effect: %s", noReplicas)
	case layer.Discovery.Peers != nil:
		r.warn("dataLayer.discovery.peers", "has no effect: %s", noReplicas)
	case layer.CrossReplicaSyncerPluginRef != "":
		r.warn("dataLayer.crossReplicaSyncerPluginRef", "has no effect: %s", noReplicas)
	case layer.CrossReplica != nil && layer.CrossReplica.SyncerPluginRef != "":
		r.warn("dataLayer.crossReplica.syncerPluginRef", "has no effect: %s", noReplicas)
	}
	path, interval := "dataLayer.crossReplicaSyncInterval", layer.CrossReplicaSyncInterval
	if layer.CrossReplica != nil && layer.CrossReplica.SyncInterval != nil {
		path, interval = "dataLayer.crossReplica.syncInterval", layer.CrossReplica.SyncInterval
	}
	if interval != nil {
		if r.cfg.syncInterval = *interval; *interval < 0 {
			r.problem(path, "must not be negative, got %v", *interval)
		}
	}
	r.checkOptional("dataLayer.crossReplicaSyncerPluginRef", layer.CrossReplicaSyncerPluginRef, roleSyncer)
	if cross := layer.CrossReplica; cross != nil {
		r.checkOptional("dataLayer.crossReplica.syncerPluginRef", cross.SyncerPluginRef, roleSyncer)
	}
}

func (r *reader) checkOptional(path, name string, want role) {
	if name != "" {
		r.checkForeign(path, name, want)
	}
}

// checkForeign checks a reference to a plugin without effect. llm-d makes some by itself, named after their type.
func (r *reader) checkForeign(path, name string, want role) {
	to := named{foreign: accepted[name].role}
	if _, listed := r.names[name]; listed || to.broken() {
		to, _ = r.find(path, name, acceptedAs(want)...)
	}
	switch {
	case to.broken():
	case to.plugin != nil:
		r.used[to.plugin] = true
		r.problem(path, "%s is of type %s, want %s", quote(name), to.plugin.row.Type, want)
	case to.foreign != want:
		r.problem(path, "%s is %s, want %s", quote(name), to.foreign, want)
	}
}
