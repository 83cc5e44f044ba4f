package main

import (
	"log/slog"
	"os/exec"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/transfer/keeper"
)

// keeping configures the keeper: the NIXL agent process, which renews and releases hand-offs at prefill engines for the
// sidecar.
type keeping struct {
	Program   string `flag:"keeper" arg:"FILE" help:"NIXL agent process (cmd/keeper, built with the tag nixl), which renews and releases hand-offs by notifying the prefill engine. The sidecar starts it, and restarts it when it dies. Empty: only decode engines release hand-offs"`
	Transport string `flag:"keeper-transport" enum:"nixl,tcp" help:"how the keeper notifies engines: nixl for real engines, tcp for simulated ones"`
	Library   string `flag:"keeper-library" arg:"PATH" help:"NIXL's libnixl_capi.so, or its folder; empty: TANDEM_NIXL_LIB, else the library of the loader or an installed Python wheel"`
}

func (k keeping) validate(p *boot.Problems) {
	p.Require(k.Library == "" || k.Program != "", "keeper-library", "has no effect without --keeper")
	p.Require(k.Library == "" || k.Transport == "nixl", "keeper-library", "has no effect with --keeper-transport=%s", k.Transport)
}

// start starts the keeper, or returns nil if none is configured. The program must exist; the library and the network may
// become available later.
func (k keeping) start(log *slog.Logger, metrics prometheus.Registerer) (*keeper.Keeper, error) {
	if k.Program == "" {
		return nil, nil
	}
	path, err := exec.LookPath(k.Program)
	if err != nil {
		return nil, boot.Missingf("starting the keeper: %w (set its path with --keeper, or leave the flag out)", err)
	}
	args := []string{"--transport=" + k.Transport}
	if k.Library != "" {
		args = append(args, "--library="+k.Library)
	}
	kept := keeper.Start(keeper.Config{Path: path, Args: args, Log: log})
	metrics.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_keeper_up",
			Help: "1 while the NIXL agent process can notify prefill engines; while it is 0, only decode engines release hand-offs."},
			func() float64 {
				if s, _ := kept.State(); s.Up() {
					return 1
				}
				return 0
			}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "tandem_keeper_starts_total",
			Help: "Starts of the NIXL agent process."},
			func() float64 { s, _ := kept.State(); return float64(s.Starts) }))
	return kept, nil
}
