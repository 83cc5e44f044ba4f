package stack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// KeeperFlags returns the flags of a sidecar with a keeper, which is in the folder of executables dir. The library is for NIXL
// only; if it is "", the keeper searches for it.
func KeeperFlags(dir, transport, library string) []string {
	if transport != TransportNIXL {
		return []string{"--keeper=" + filepath.Join(dir, "keeper"), "--keeper-transport=" + TransportTCP}
	}
	flags := []string{"--keeper=" + filepath.Join(NIXLDir(dir), "keeper"), "--keeper-transport=" + TransportNIXL}
	if library != "" {
		flags = append(flags, "--keeper-library="+library)
	}
	return flags
}

const (
	// keeperTimeout bounds the start of all keepers together.
	keeperTimeout = 30 * time.Second
	// keeperStarts is how often a sidecar may start its keeper within that time.
	keeperStarts = 3
)

var (
	errKeeperSlow = fmt.Errorf("it is not up within %v", keeperTimeout)
	errKeeperDies = errors.New("it ends again and again")
)

// awaitKeepers waits until all keepers work. Sidecars are ready without them, but could not hold the first hand-offs.
func (a *assembly) awaitKeepers(ctx context.Context) error {
	if !a.Keeper {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, keeperTimeout, errKeeperSlow)
	defer cancel()
	for _, pod := range a.pd.Decode {
		if err := awaitKeeper(ctx, pod.SidecarMetrics); err != nil {
			var said string
			if m, ok := a.group.Member(pod.sidecar()); ok {
				said = quoteLines(m.(interface{ Output() []string }).Output())
			}
			return fmt.Errorf("waiting for the keeper of %s: %w%s", pod.sidecar(), err, said)
		}
	}
	return nil
}

// awaitKeeper asks a sidecar until its keeper is up.
func awaitKeeper(ctx context.Context, metrics string) error {
	again := time.NewTicker(probeInterval)
	defer again.Stop()
	for {
		page, err := get(ctx, "http://"+metrics+"/metrics", "")
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("asking the sidecar: %w", rootCause(err))
		case gauge(page, "tandem_keeper_up") == 1:
			return nil
		case gauge(page, "tandem_keeper_starts_total") > keeperStarts:
			return errKeeperDies
		}
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// gauge finds a series without labels on a metrics page; 0 if it is not there.
func gauge(page []byte, name string) float64 {
	for line := range strings.Lines(string(page)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return n
		}
	}
	return 0
}
