package boot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// Listen opens a TCP listener at addr for the flag with the given name
// (without dashes). The error is an [Exit] with CodeMissing that says what the
// user can do.
func Listen(ctx context.Context, flagName, addr string) (net.Listener, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", addr)
	if err == nil {
		return l, nil
	}
	advice := fmt.Sprintf("set another with --%s", flagName)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		advice = fmt.Sprintf("the address is in use: choose another with --%s, or 0 as port for any free one", flagName)
	case errors.Is(err, syscall.EACCES):
		advice = fmt.Sprintf("not permitted: choose a port above 1023 with --%s", flagName)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		advice = fmt.Sprintf("this host does not have the address: choose another with --%s", flagName)
	}
	return nil, Missingf("listening on %s: %w (%s)", addr, rootCause(err), advice)
}

// Port is an address to listen at, and the name of the flag that sets it.
type Port struct{ Flag, Addr string }

// ListenAll opens listeners at all ports, in their order. If one fails, it closes those it has opened.
func ListenAll(ctx context.Context, ports ...Port) ([]net.Listener, error) {
	var open []net.Listener
	for _, p := range ports {
		l, err := Listen(ctx, p.Flag, p.Addr)
		if err != nil {
			for _, l := range open {
				_ = l.Close() // no client has connected
			}
			return nil, err
		}
		open = append(open, l)
	}
	return open, nil
}

// rootCause drops the layers of a network error that only repeat the address.
func rootCause(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// Purposes of addresses of single pods in the ready line of tandem up, which tandem doctor and tandem why read.
const (
	SideChannelAddress    = "side-channel"
	SidecarMetricsAddress = "sidecar-metrics"
	SidecarAdminAddress   = "sidecar-admin"
)

// PodAddress returns the key of a pod's address in a ready line: "prefill-0/side-channel".
func PodAddress(pod, purpose string) string { return pod + "/" + purpose }

// Addresses maps the purpose of each listener (extproc, http, admin …) to its address.
type Addresses map[string]net.Addr

// Ready prints the line that tells tests, scripts and cmd/tandem that every listener of the component is open, and at which
// addresses, since any port may have been given as 0:
//
//	{"ready":"epp","addresses":{"extproc":"127.0.0.1:41233"}}
//
// The keys are sorted. Call it once.
func Ready(stdout io.Writer, component string, addresses Addresses) error {
	texts := make(map[string]string, len(addresses))
	for name, addr := range addresses {
		texts[name] = addr.String()
	}
	line, err := json.Marshal(struct {
		Ready     string            `json:"ready"`
		Addresses map[string]string `json:"addresses"`
	}{component, texts})
	if err != nil {
		return fmt.Errorf("writing the ready line: %w", err)
	}
	if _, err := stdout.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("writing the ready line: %w", err)
	}
	return nil
}
