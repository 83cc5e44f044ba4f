package main

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"

	"github.com/tandem-serving/tandem/batch/queue"
	"github.com/tandem-serving/tandem/batch/upstream"
	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

type queues struct {
	File string `flag:"queues-file" arg:"FILE" help:"YAML file with the message queues whose requests are answered (docs/queues.md); empty: none"`
}

func (q *queues) read() ([]queue.Config, error) {
	if q.File == "" {
		return nil, nil
	}
	return queue.ReadFile(q.File)
}

func (q *queues) validate(p *boot.Problems) {
	if _, err := q.read(); err != nil {
		p.Add("queues-file", "%w", err)
	}
}

// consumers answer the messages of queues.
type consumers []consumer

type consumer struct {
	*queue.Consumer
	source queue.Source
}

// open opens the queues. Their brokers need not answer yet.
func (q *queues) open(to *upstream.Client, drain time.Duration, reg prometheus.Registerer, log *slog.Logger, propagator propagation.TextMapPropagator) (consumers, error) {
	configs, err := q.read()
	if err != nil || len(configs) == 0 {
		return nil, err
	}
	metrics := queue.NewMetrics(reg)
	var all consumers
	for _, cfg := range configs {
		source, err := cfg.Open()
		if err != nil {
			all.close()
			return nil, boot.Configf("queues-file: queue %s: %w", cfg.Queue, err)
		}
		all = append(all, consumer{queue.New(cfg, source, to, drain, queue.Telemetry{Log: log, Metrics: metrics, Propagator: propagator}), source})
	}
	return all, nil
}

func (all consumers) close() {
	for _, c := range all {
		_ = c.source.Close() // results are stored, and claims released
	}
}
