package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
)

const (
	bridge = "tandem0"
	// maskBits is the length of the network's prefix.
	maskBits = 16
	// dropHardware is a hardware address that no interface has: packets to it are lost.
	dropHardware = "02:00:00:00:00:01"
)

var (
	// nodeAddress is the bridge's.
	nodeAddress = netip.AddrFrom4([4]byte{10, 244, 0, 1})
	// dropGateway is an address that no machine has: routes over it lead to dropHardware.
	dropGateway = netip.AddrFrom4([4]byte{10, 244, 255, 254})

	// given are the addresses of all sandboxes of this process: its bridge is one.
	given = addresses{first: netip.AddrFrom4([4]byte{10, 244, 1, 1}), last: netip.AddrFrom4([4]byte{10, 244, 254, 254})}
)

// addresses hands out each address of a range once, and then the one that was released first.
type addresses struct {
	first, last netip.Addr

	mu     sync.Mutex
	taken  map[netip.Addr]bool
	latest netip.Addr // the one given last
}

// take returns the next free address after the last one, so that a new sandbox does not get the address of one that just
// closed.
func (a *addresses) take() (netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.taken == nil {
		a.taken, a.latest = map[netip.Addr]bool{}, a.last
	}
	start := a.latest
	for {
		if a.latest = a.latest.Next(); a.last.Less(a.latest) {
			a.latest = a.first
		}
		if !a.taken[a.latest] {
			a.taken[a.latest] = true
			return a.latest, nil
		}
		if a.latest == start {
			return netip.Addr{}, errors.New("all addresses are taken")
		}
	}
}

func (a *addresses) giveBack(address netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.taken, address)
}

// hardware returns the hardware address for an address. It is always the same, so that no neighbour caches a wrong one.
func hardware(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// setUpBridge starts loopback and the bridge. The bridge's hardware address is given, or it would be that of some member.
func setUpBridge() error {
	return ip(context.Background(), "",
		"link set lo up",
		"link add "+bridge+" address "+hardware(nodeAddress)+" type bridge",
		fmt.Sprintf("addr add %s/%d dev %s", nodeAddress, maskBits, bridge),
		"link set "+bridge+" up")
}

// ip has ip do some commands, in a network namespace that ip knows by name; "" is that of this process.
func ip(ctx context.Context, namespace string, commands ...string) error {
	args := []string{"-batch", "-"}
	if namespace != "" {
		args = append([]string{"-netns", namespace}, args...)
	}
	return network(ctx, strings.Join(commands, "\n"), "ip", args...)
}

// network runs a program of iproute2.
func network(ctx context.Context, input, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w (Debian: apt-get install iproute2)", err)
	case err != nil:
		return fmt.Errorf("%s %s %q: %w: %s", name, strings.Join(args, " "), input, err, bytes.TrimSpace(out))
	}
	return nil
}
