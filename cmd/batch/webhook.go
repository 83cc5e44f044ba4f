package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/batch/store"
	"github.com/tandem-serving/tandem/batch/webhook"
	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

type hook struct {
	URL        string `flag:"webhook-url" arg:"URL" help:"server of yours that is told when batches have ended, by OpenAI's events; empty: none. Clients cannot name one"`
	SecretFile string `flag:"webhook-secret-file" arg:"FILE" help:"file with the secret of the events' signatures: whsec_ and 24 to 64 bytes in base64, as Standard Webhooks has it"`
}

// config returns nil if no webhooks are to be sent. flag is the one that is wrong.
func (h *hook) config() (cfg *webhook.Config, flag string, err error) {
	const address, file = "webhook-url", "webhook-secret-file"
	if h.URL == "" {
		if h.SecretFile != "" {
			return nil, file, errors.New("has no effect without --webhook-url")
		}
		return nil, "", nil
	}
	at, err := url.Parse(h.URL)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" || at.Fragment != "" || at.User != nil {
		return nil, address, errors.New("is not a URL like https://hooks.example.com/batches, without a user or a fragment")
	}
	if h.SecretFile == "" {
		return nil, address, errors.New("needs --webhook-secret-file: the server cannot tell events from forged ones otherwise")
	}
	text, err := boot.ReadLine(h.SecretFile, "the secret")
	if err != nil {
		return nil, file, err
	}
	secret, err := webhook.ParseSecret(text)
	if err != nil {
		return nil, file, fmt.Errorf("%s: the secret %w", h.SecretFile, err)
	}
	return &webhook.Config{URL: at, Secret: secret}, "", nil
}

func (h *hook) sender(s *store.Store, reg prometheus.Registerer, log *slog.Logger) (*webhook.Sender, error) {
	cfg, flag, err := h.config()
	if err != nil {
		return nil, boot.Configf("%s: %w", flag, err)
	}
	if cfg == nil {
		return nil, nil
	}
	return webhook.New(*cfg, s, log, reg), nil
}
