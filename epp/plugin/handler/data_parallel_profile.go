package handler

import "github.com/tandem-serving/tandem/epp"

// DataParallelProfile runs the only profile of the file, for gateways that reach only one port of each pod. The profile picks a
// rank, which is an endpoint with a port of its own. The gateway is told the pod's primary port, where the sidecar is, and the sidecar
// is told the rank in x-data-parallel-host-port, which it reads if its --data-parallel-size is above 1. No request is split, and only
// one rank is named for each.
type DataParallelProfile struct {
	// PrimaryPort is the port of every pod at which its sidecar serves all ranks. Default 8000.
	PrimaryPort int `yaml:"primaryPort"`
}

// NewDataParallelProfile returns the parameters with their defaults.
func NewDataParallelProfile() epp.Plugin { return &DataParallelProfile{PrimaryPort: 8000} }

const maxPort = 65535

// Problems implements epp.Plugin.
func (p *DataParallelProfile) Problems(report epp.Report) {
	if p.PrimaryPort < 1 || p.PrimaryPort > maxPort {
		report("primaryPort", "must be from 1 to %d, got %d", maxPort, p.PrimaryPort)
	}
}

// Build implements epp.Plugin.
func (p *DataParallelProfile) Build(*epp.Builder) (any, error) {
	return dataParallelHandler{port: uint16(p.PrimaryPort)}, nil
}

type dataParallelHandler struct {
	singleProfileHandler
	port uint16
}

// Stages implements epp.Handler.
func (h dataParallelHandler) Stages(profiles []string) (epp.Stages, error) {
	stages, err := h.singleProfileHandler.Stages(profiles)
	if err != nil {
		return nil, err
	}
	stages[0].Port = h.port
	return stages, nil
}
