package container

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// maxLimit bounds [Sandbox.Limit], in bits per second: 10 Gbit/s, more than a bridge on this machine does.
const maxLimit = 10e9

// SandboxOptions are what the containers of a sandbox share.
type SandboxOptions struct {
	Name        string   // of its own on the machine: letters, digits, dashes, dots and underscores
	Hostname    string   // of its containers, and in their /etc/hosts
	Nameservers []string // addresses of DNS servers; none: names are not resolved
	Searches    []string // domains in which a name is looked up that has fewer than five dots
}

// Sandbox is what the containers of a pod share: a network namespace with an address, and files in /etc.
type Sandbox struct {
	host     *Host
	name     string // of its network namespace too, for ip netns exec
	hostname string
	dir      string
	address  netip.Addr
	close    func() error // once

	life    sync.RWMutex // read by what makes something that the end of all removes
	closed  bool
	started atomic.Int64 // containers, ever

	mu         sync.Mutex
	containers map[*Container]bool // those that run
}

var errClosed = errors.New("the sandbox is closed")

var sandboxName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$`)

// NewSandbox makes a sandbox. It can be reached from the node and from all other sandboxes. Close it, or its host.
func (h *Host) NewSandbox(ctx context.Context, o SandboxOptions) (*Sandbox, error) {
	s := &Sandbox{host: h, name: o.Name, hostname: o.Hostname, dir: filepath.Join(h.dir, o.Name),
		containers: map[*Container]bool{}}
	s.close = sync.OnceValue(s.closeAll)
	fail := func(err error) (*Sandbox, error) { return nil, fmt.Errorf("making sandbox %s: %w", o.Name, err) }
	if !sandboxName.MatchString(o.Name) {
		return fail(fmt.Errorf("its name does not match %s", sandboxName))
	}
	if err := h.add(s); err != nil {
		return fail(err)
	}
	if err := s.make(ctx, o); err != nil {
		return fail(errors.Join(err, s.Close()))
	}
	return s, nil
}

func (s *Sandbox) make(ctx context.Context, o SandboxOptions) (err error) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed {
		return errClosed
	}
	if s.address, err = given.take(); err != nil {
		return err
	}
	if err := s.writeFiles(o); err != nil {
		return err
	}
	link := s.link()
	err = ip(ctx, "",
		"netns add "+s.name,
		fmt.Sprintf("link add %s type veth peer name eth0 address %s netns %s", link, hardware(s.address), s.name),
		fmt.Sprintf("link set %s master %s up", link, bridge))
	if err != nil {
		return err
	}
	return ip(ctx, s.name,
		"link set lo up",
		fmt.Sprintf("addr add %s/%d dev eth0", s.address, maskBits),
		"link set eth0 up",
		fmt.Sprintf("route add default via %s", nodeAddress),
		fmt.Sprintf("neigh replace %s lladdr %s nud permanent dev eth0", dropGateway, dropHardware))
}

// link names its end at the bridge.
func (s *Sandbox) link() string {
	b := s.address.As4()
	return fmt.Sprintf("veth%d-%d", b[2], b[3])
}

// writeFiles writes what the containers have in /etc: a resolver that looks for names with few dots in the search domains
// first, as a pod's does.
func (s *Sandbox) writeFiles(o SandboxOptions) error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	var resolver strings.Builder
	for _, n := range o.Nameservers {
		resolver.WriteString("nameserver " + n + "\n")
	}
	if len(o.Searches) > 0 {
		resolver.WriteString("search " + strings.Join(o.Searches, " ") + "\n")
	}
	resolver.WriteString("options ndots:5\n")
	hosts := "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n" + s.address.String() + " " + o.Hostname + "\n"
	for name, text := range map[string]string{"resolv.conf": resolver.String(), "hosts": hosts, "hostname": o.Hostname + "\n"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// IP returns its address.
func (s *Sandbox) IP() netip.Addr { return s.address }

// Close kills its containers, waits for them, and gives the address back.
func (s *Sandbox) Close() error { return s.close() }

func (s *Sandbox) closeAll() error {
	s.life.Lock()
	s.closed = true
	s.life.Unlock()
	s.mu.Lock()
	running := make([]*Container, 0, len(s.containers))
	for c := range s.containers {
		running = append(running, c)
	}
	s.mu.Unlock()
	var errs []error
	for _, c := range running {
		errs = append(errs, c.Kill())
	}
	if s.address.IsValid() {
		errs = append(errs, s.removeNetwork())
		given.giveBack(s.address)
	}
	errs = append(errs, os.RemoveAll(s.dir))
	s.host.remove(s)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing sandbox %s: %w", s.name, err)
	}
	return nil
}

// removeNetwork removes what was made of it. The link has to go first: a namespace ends when Linux has time for it.
func (s *Sandbox) removeNetwork() error {
	var errs []error
	ctx := context.Background()
	if _, err := net.InterfaceByName(s.link()); err == nil {
		errs = append(errs, ip(ctx, "", "link del "+s.link()))
	}
	if _, err := os.Stat(s.namespace()); err == nil {
		errs = append(errs, ip(ctx, "", "netns del "+s.name))
	}
	return errors.Join(errs...)
}

// namespace returns the file of its network namespace.
func (s *Sandbox) namespace() string { return filepath.Join("/run/netns", s.name) }

// Drop loses packets to an address from now on, without an error for the sender. Packets from there still arrive.
func (s *Sandbox) Drop(to netip.Addr) error {
	if err := ip(context.Background(), s.name, fmt.Sprintf("route replace %s via %s dev eth0", to, dropGateway)); err != nil {
		return fmt.Errorf("dropping what %s sends to %s: %w", s.name, to, err)
	}
	return nil
}

// Restore ends [Sandbox.Drop]. It fails if nothing was dropped.
func (s *Sandbox) Restore(to netip.Addr) error {
	if err := ip(context.Background(), s.name, fmt.Sprintf("route del %s via %s dev eth0", to, dropGateway)); err != nil {
		return fmt.Errorf("restoring what %s sends to %s: %w", s.name, to, err)
	}
	return nil
}

// Limit bounds what the sandbox sends to others, in bits per second from 8,000 to 10,000,000,000; 0: no limit, as before the
// first call. Packets that would wait longer than 400 ms are lost.
func (s *Sandbox) Limit(bitsPerSecond int64) error {
	const (
		least        = 8000
		packet       = 16 << 10 // bytes that may go at once at the lowest rate: some packets
		ticksASecond = 100      // times a second at which Linux lets packets go, at least
	)
	var err error
	switch {
	case bitsPerSecond == 0:
		// Without one there is nothing to delete; with one in its place there always is.
		if err = s.shape("replace", "pfifo"); err == nil {
			err = s.shape("del")
		}
	case bitsPerSecond < least || bitsPerSecond > maxLimit:
		err = fmt.Errorf("%d bit/s is not from %d to %.0f", bitsPerSecond, least, float64(maxLimit))
	default:
		burst := max(packet, bitsPerSecond/8/ticksASecond)
		err = s.shape("replace", "tbf", "rate", strconv.FormatInt(bitsPerSecond, 10)+"bit",
			"burst", strconv.FormatInt(burst, 10)+"b", "latency", "400ms")
	}
	if err != nil {
		return fmt.Errorf("limiting what %s sends: %w", s.name, err)
	}
	return nil
}

func (s *Sandbox) shape(verb string, how ...string) error {
	args := append([]string{"-netns", s.name, "qdisc", verb, "dev", "eth0", "root"}, how...)
	return network(context.Background(), "", "tc", args...)
}
