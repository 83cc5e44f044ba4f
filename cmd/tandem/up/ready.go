package up

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/stack"
)

// announce prints the ready line, with all addresses that tandem doctor and tandem why need.
func announce(stdout io.Writer, pd *stack.PD) error {
	texts := map[string]string{"http": pd.Proxy, "extproc": pd.EPP.ExtProc, "health": pd.EPP.Health, "metrics": pd.EPP.Metrics, "admin": pd.EPP.Admin}
	for _, pod := range pd.Prefill {
		if pod.SideChannel != "" {
			texts[boot.PodAddress(pod.Name, boot.SideChannelAddress)] = pod.SideChannel
		}
	}
	for _, pod := range slices.Concat(pd.Decode, pd.Plain) {
		texts[boot.PodAddress(pod.Name, boot.SidecarMetricsAddress)] = pod.SidecarMetrics
		texts[boot.PodAddress(pod.Name, boot.SidecarAdminAddress)] = pod.SidecarAdmin
	}
	addresses := boot.Addresses{}
	for name, address := range texts {
		parsed, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("announcing the %s address: %w", name, err)
		}
		addresses[name] = net.TCPAddrFromAddrPort(parsed)
	}
	return boot.Ready(stdout, "up", addresses)
}
