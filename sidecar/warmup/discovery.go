package warmup

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/tandem-serving/tandem/pd"
)

// Finder lists the pods that exist now.
type Finder func(context.Context) ([]pd.Target, error)

// ParseDiscovery parses the value of --prefill-discovery and --continue-discovery: dns://host:port (every address of the name) or
// file:path (host:port lines, # begins a comment).
func ParseDiscovery(source string) (Finder, error) {
	if path, ok := strings.CutPrefix(source, "file:"); ok && path != "" {
		return func(context.Context) ([]pd.Target, error) { return readTargets(path) }, nil
	}
	name, ok := strings.CutPrefix(source, "dns://")
	targets, err := pd.ParseTargets([]string{name})
	if !ok || err != nil || len(targets) != 1 {
		return nil, fmt.Errorf("%q is neither dns://HOST:PORT nor file:PATH", source)
	}
	return func(ctx context.Context) ([]pd.Target, error) { return resolve(ctx, targets[0]) }, nil
}

func resolve(ctx context.Context, name pd.Target) ([]pd.Target, error) {
	addrs, err := net.DefaultResolver.LookupHost(ctx, name.Host)
	if err != nil {
		return nil, err
	}
	targets := make([]pd.Target, len(addrs))
	for i, a := range addrs {
		targets[i] = pd.Target{Host: a, Port: name.Port}
	}
	return targets, nil
}

func readTargets(path string) ([]pd.Target, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var targets []pd.Target
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		t, err := pd.ParseTargets([]string{line})
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		targets = append(targets, t...)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return targets, nil
}
