package main

import (
	"log/slog"
	"os/exec"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/transfer/keeper"
)

// keeping is the process that speaks to prefill engines in place of the sidecar.
type keeping struct {
	Program   string `flag:"keeper" arg:"FILE" help:"program that holds hand-offs and gives them back by telling the prefill engine itself (cmd/keeper, built with the tag nixl): it runs as a child, and is started again when it dies. Empty: decode engines are the only ones that tell"`
	Transport string `flag:"keeper-transport" enum:"nixl,tcp" help:"what the keeper speaks: nixl with engines, tcp with simulated ones"`
	Library   string `flag:"keeper-library" arg:"PATH" help:"NIXL's libnixl_capi.so, or its folder; empty: TANDEM_NIXL_LIB, else where the loader and installed Python wheels have it"`
}

func (k keeping) validate(p *boot.Problems) {
	p.Require(k.Library == "" || k.Program != "", "keeper-library", "has no effect without --keeper")
	p.Require(k.Library == "" || k.Transport == "nixl", "keeper-library", "is of no use to --keeper-transport=%s", k.Transport)
}

// start starts the keeper, or gives nil if there is none to be. What it works with may come and go; the program must be there.
func (k keeping) start(log *slog.Logger, metrics prometheus.Registerer) (*keeper.Keeper, error) {
	if k.Program == "" {
		return nil, nil
	}
	path, err := exec.LookPath(k.Program)
	if err != nil {
		return nil, boot.Missingf("starting the keeper: %w (say with --keeper where it is, or leave the flag out to go without)", err)
	}
	args := []string{"--transport=" + k.Transport}
	if k.Library != "" {
		args = append(args, "--library="+k.Library)
	}
	kept := keeper.Start(keeper.Config{Path: path, Args: args, Log: log})
	metrics.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_keeper_up",
			Help: "1 while the keeper can tell prefill engines; while it is 0, decode engines are the only ones that do."},
			func() float64 {
				if s, _ := kept.State(); s.Up() {
					return 1
				}
				return 0
			}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "tandem_keeper_starts_total",
			Help: "Times that the keeper was started."},
			func() float64 { s, _ := kept.State(); return float64(s.Starts) }))
	return kept, nil
}
