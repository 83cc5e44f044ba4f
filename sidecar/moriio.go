package sidecar

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd/dialect"
)

// MoRIIO describes engines of vLLM's MoRIIOConnector. The flags and their defaults are llm-d's.
type MoRIIO struct {
	Write    bool `flag:"moriio-write-mode" help:"prefill engines write KV caches into decode engines, as vLLM's MoRIIOConnector does by default; with --kv-connector=nixlv2 it chooses moriio, as in llm-d. Without it decode engines read (read_mode), and serve no request alone"`
	Parallel bool `flag:"moriio-parallel-dispatch" help:"send both legs at once. Needs --moriio-write-mode. A decode engine whose prefill leg fails keeps the blocks of its own leg until it is restarted"`
	// Local has no variable of its own: llm-d's is that of --pod-ip.
	Local            string        `flag:"moriio-local-pod-ip" arg:"HOST" help:"address or name of this pod, to which prefill engines write; default: --pod-ip"`
	DecodeNotify     int           `flag:"moriio-decode-notify-port" arg:"PORT" help:"notify_port of the decode engine; a data-parallel rank has the port of its number above it"`
	DecodeHandshake  int           `flag:"moriio-decode-handshake-port" arg:"PORT" help:"handshake_port of the decode engine"`
	PrefillNotify    int           `flag:"moriio-prefill-notify-port" arg:"PORT" help:"notify_port of the prefill engines, for --moriio-parallel-dispatch; without it their answers say it"`
	PrefillHandshake int           `flag:"moriio-prefill-handshake-port" arg:"PORT" help:"handshake_port of the prefill engines, for --moriio-parallel-dispatch; without it their answers say it"`
	Wait             time.Duration `flag:"moriio-parallel-decode-wait-timeout" help:"longest time that a prefill leg may take with --moriio-parallel-dispatch, if --prefill-timeout is longer"`
	Tensor           int           `flag:"moriio-tp-size" arg:"RANKS" help:"tensor-parallel ranks of the engines"`
	Data             int           `flag:"moriio-dp-size" arg:"RANKS" help:"data-parallel ranks of the engines, over all of their pods: both legs of a request get one rank, by x-data-parallel-rank"`
	LocalData        int           `flag:"moriio-dp-size-local" arg:"RANKS" help:"data-parallel ranks of one pod; 0: all"`
	RemoteHosts      []string      `flag:"moriio-remote-hosts" arg:"HOST[,…]" help:"addresses or names of the pods over which the ranks of a prefill engine are spread, in the order of the ranks; empty: one pod has all"`
	DecodeHosts      []string      `flag:"moriio-decode-hosts" arg:"HOST[,…]" help:"the same for the decode engine"`
	// llm-d has these two as variables only.
	ResolveTTL     int `flag:"moriio-dns-ttl-seconds" env:"MORIIO_DNS_RESOLVE_TTL_SECONDS" arg:"SECONDS" help:"how long the address of a name of these flags is used before the name is resolved again"`
	ResolveTimeout int `flag:"moriio-dns-timeout-seconds" env:"MORIIO_DNS_RESOLVE_TIMEOUT_SECONDS" arg:"SECONDS" help:"longest time that this may take; if it fails, the last address is used"`
}

// protocolMoRIIO and protocolNIXL are names of dialects.
const protocolMoRIIO, protocolNIXL = "moriio", "nixlv2"

// protocol returns the name of the hand-off protocol. llm-d has that of MoRIIOConnector as a mode of NIXL's.
func (c *Config) protocol() string {
	row, _ := dialect.Find(c.Engine.Connector)
	if c.MoRIIO.Write && row.Name == protocolNIXL {
		return protocolMoRIIO
	}
	return c.Engine.Connector
}

// problems reports what is wrong with the flags.
func (m *MoRIIO) problems(c *Config, report func(flag, format string, args ...any)) {
	if c.protocol() != protocolMoRIIO {
		if m.Write {
			report("moriio-write-mode", "has no effect with --kv-connector=%s: it is for moriio, and for nixlv2, of which it makes moriio", c.Engine.Connector)
		}
		if m.Data != 1 {
			report("moriio-dp-size", "has no effect without --moriio-write-mode or --kv-connector=moriio; ranks of other engines have --data-parallel-size")
		}
	}
	if m.Parallel && !m.Write {
		report("moriio-parallel-dispatch", "needs --moriio-write-mode: a decode engine that reads must be told of blocks that are computed")
	}
	for flag, port := range map[string]int{"moriio-decode-notify-port": m.DecodeNotify, "moriio-decode-handshake-port": m.DecodeHandshake,
		"moriio-prefill-notify-port": m.PrefillNotify, "moriio-prefill-handshake-port": m.PrefillHandshake} {
		if port < 1 || port > 65535 {
			report(flag, "%d is not a port (1 to 65535)", port)
		}
	}
	for flag, n := range map[string]int{"moriio-tp-size": m.Tensor, "moriio-dp-size": m.Data, "moriio-dns-ttl-seconds": m.ResolveTTL, "moriio-dns-timeout-seconds": m.ResolveTimeout} {
		if n < 1 {
			report(flag, "%d is not positive", n)
		}
	}
	if m.Wait <= 0 {
		report("moriio-parallel-decode-wait-timeout", "%s is not a positive time", m.Wait)
	}
	if m.LocalData < 0 {
		report("moriio-dp-size-local", "%d is not a number of ranks (0 or more)", m.LocalData)
	}
	for flag, hosts := range map[string][]string{"moriio-remote-hosts": m.RemoteHosts, "moriio-decode-hosts": m.DecodeHosts} {
		if n := len(hosts); n > 1 && (m.LocalData < 1 || m.LocalData*n != m.Data) {
			report(flag, "names %d pods with --moriio-dp-size-local=%d ranks each, which are not the %d ranks of --moriio-dp-size", n, m.LocalData, m.Data)
		}
	}
	if c.protocol() == protocolMoRIIO && m.local(c) == "" {
		report("moriio-local-pod-ip", "is needed, or --pod-ip or POD_IP: a prefill engine that is not told where decode is ends")
	}
}

// local returns the address or name of this pod.
func (m *MoRIIO) local(c *Config) string {
	if m.Local != "" {
		return m.Local
	}
	return c.Prefill.PodIP
}

// prefillTimeout returns how long a prefill leg may take.
func (c *Config) prefillTimeout() time.Duration {
	if c.MoRIIO.Parallel {
		return min(c.Prefill.Timeout, c.MoRIIO.Wait)
	}
	return c.Prefill.Timeout
}

// engines returns what the dialect is told.
func (m *MoRIIO) engines(c *Config) dialect.MoRIIO {
	resolver := &resolver{lookup: net.DefaultResolver.LookupNetIP, ttl: time.Duration(m.ResolveTTL) * time.Second,
		timeout: time.Duration(m.ResolveTimeout) * time.Second, known: map[string]*resolved{}}
	return dialect.MoRIIO{Write: m.Write, Parallel: m.Parallel, Local: m.local(c),
		Decode:  dialect.MoRIIOPorts{Handshake: m.DecodeHandshake, Notify: m.DecodeNotify},
		Prefill: dialect.MoRIIOPorts{Handshake: m.PrefillHandshake, Notify: m.PrefillNotify},
		Tensor:  m.Tensor, Data: m.Data, LocalData: m.LocalData, PrefillHosts: m.RemoteHosts, DecodeHosts: m.DecodeHosts, Resolve: resolver.resolve}
}

// resolver keeps the addresses of a few names, which legs carry. It is safe for concurrent use.
type resolver struct {
	lookup       func(ctx context.Context, network, host string) ([]netip.Addr, error)
	ttl, timeout time.Duration

	mu    sync.Mutex // guards the rest, with the entries
	known map[string]*resolved
}

// resolved is what is known of a name.
type resolved struct {
	address string
	asked   time.Time
	busy    bool // a request resolves it again
}

// resolve returns the address of a host, an IPv4 one if it has one. Of an address that is too old one request at a time asks again, and the
// others use it.
func (r *resolver) resolve(ctx context.Context, host string) (string, error) {
	if _, err := netip.ParseAddr(host); err == nil {
		return host, nil
	}
	r.mu.Lock()
	old := r.known[host]
	if old != nil && (old.busy || time.Since(old.asked) < r.ttl) {
		r.mu.Unlock()
		return old.address, nil
	}
	if old != nil {
		old.busy = true
	}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	found, err := r.lookup(ctx, "ip", host)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil && len(found) > 0:
		r.known[host] = &resolved{address: preferred(found), asked: time.Now()}
	case old == nil:
		return "", &net.DNSError{Err: "no address", Name: host, UnwrapErr: err}
	default: // the pod may be on its way from one address to another
		r.known[host] = &resolved{address: old.address, asked: time.Now()}
	}
	return r.known[host].address, nil
}

// preferred returns the first IPv4 address, or else the first.
func preferred(found []netip.Addr) string {
	for _, a := range found {
		if a = a.Unmap(); a.Is4() {
			return a.String()
		}
	}
	return found[0].String()
}
