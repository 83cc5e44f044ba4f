package replay

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/client"
	"github.com/tandem-serving/tandem/cmd/tandem/fit"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/replay/engine"
)

func (f *fitFlags) validate(p *boot.Problems) {
	p.Require(f.For > 0, "fit-for", "must be positive")
	p.Require(f.Timeout > 0, "fit-timeout", "must be positive")
	if f.URL != "" {
		_, err := client.BaseURL(f.URL)
		p.Require(err == nil, "fit", "%w", err)
	}
}

// maxKey is the size of a file with an API key at most.
const maxKey = 64 << 10

// fit measures an engine, and prints its table. The error is an Exit with CodeMissing if the engine cannot be reached.
func (s *settings) fit(ctx context.Context, std boot.IO) error {
	header := http.Header{}
	if s.Fit.Key != "" {
		key, err := epp.ReadFile(s.Fit.Key, maxKey)
		if err != nil {
			return boot.Configf("reading the API key: %w", err)
		}
		header.Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
	}
	const connections = 256
	result, err := fit.Run(ctx, fit.Options{
		Endpoint: client.Options{URL: s.Fit.URL, Header: header, ConnectTimeout: 10 * time.Second, Timeout: s.Fit.Timeout, Connections: connections},
		Model:    s.Fit.Model, For: s.Fit.For, Seed: uint64(s.Picker.Seed), Progress: std.Stderr,
		Settings: engine.Settings{KVTokens: s.Pool.KVTokens, KVBytes: s.Pool.KVBytes, BlockTokens: s.Pool.BlockTokens, StepTokens: s.Pool.StepTokens, Sequences: s.Pool.Sequences},
	})
	if result == nil {
		if failure := (*client.Failure)(nil); errors.As(err, &failure) && failure.Unreachable {
			return boot.Missingf("%w", err)
		}
		return err
	}
	for _, line := range append(result.Quality(), result.Notes...) {
		fmt.Fprintln(std.Stderr, line)
	}
	return errors.Join(err, result.Write(std.Stdout))
}
