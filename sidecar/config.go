package sidecar

import (
	"crypto/tls"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/encode"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/transport"
	"github.com/tandem-serving/tandem/sidecar/warmup"
	"github.com/tandem-serving/tandem/transfer"
)

// Config is the sidecar's configuration, without its listeners. The tags declare the flags.
type Config struct {
	Engine   Engine   `group:"Decode engine"`
	Prefill  Prefill  `group:"Prefill"`
	MoRIIO   MoRIIO   `group:"Engines of vLLM's MoRIIOConnector"`
	Encode   Encode   `group:"Encoders"`
	Fallback Fallback `group:"Fallback and release"`
	Continue Continue `group:"Streams that go on elsewhere"`
	Keep     Keep     `group:"Holding and releasing over NIXL"`
	Trust    Trust    `group:"Trust and limits"`
	Tell     Tell     `group:"What is told about requests"`
}

// Engine is the local decode engine.
type Engine struct {
	Host string `flag:"model-server-host" arg:"HOST" help:"host of the decode engine"`
	Port int    `flag:"model-server-port" alias:"vllm-port" arg:"PORT" help:"port of the decode engine"`
	// Ranks are engines of their own, such as those of vLLM's --data-parallel-multi-port-external-lb.
	Ranks     int    `flag:"data-parallel-size" arg:"RANKS" help:"data-parallel ranks of the decode engine, each with a port of its own: the sidecar listens on as many ports from --port on, and forwards each to the port with the same offset from --model-server-port"`
	Connector string `flag:"kv-connector" alias:"connector" arg:"NAME" help:"hand-off protocol of the engines: nixlv2, sglang, shared-storage, mooncake, nixl-push, offloading, moriio, trtllm, trtllm-generation-first"`
	// Dialect is used instead of Connector if it is not nil: a hand-off protocol that is not in the table, such as a test's.
	Dialect dialect.Dialect
	// FirstEvent has no counterpart in engines: they wait for a dead prefill engine without limit.
	FirstEvent time.Duration `flag:"first-event-timeout" help:"longest wait for the first event of a remote stream after its headers; then the decode leg is sent again without the hand-off"`
	HangAfter  time.Duration `flag:"hang-after" help:"an engine hangs if neither its legs nor health checks get an answer for this long, or for as long as legs usually take if that is longer: its legs end, and no other is sent until it answers; 0: none hangs"`
	IdleConns  int           `flag:"max-idle-conns-per-host" help:"idle connections kept to one engine"`
	// AnswerHealth is for probes that were made for llm-d's sidecar, and must not fail while the engine loads its weights.
	AnswerHealth bool `flag:"answer-health" help:"answer GET /health on the data port with 200 whatever the state of the engine, as llm-d's sidecar does; without it the engine answers"`
	// TLS returns the TLS setup of a new connection to the engine; nil for plaintext. The program declares the flags.
	TLS func() *tls.Config
}

// url returns the base of the URLs of a rank.
func (e Engine) url(rank int) string {
	return transport.Scheme(e.TLS) + net.JoinHostPort(e.Host, strconv.Itoa(e.Port+rank))
}

// Prefill configures prefill legs.
type Prefill struct {
	Timeout      time.Duration `flag:"prefill-timeout" help:"longest time one prefill leg may take"`
	MaxRetries   int           `flag:"prefill-max-retries" help:"further tries on the same candidate after a 502, 503, 504 or a lost connection, before the next candidate"`
	RetryBackoff time.Duration `flag:"prefill-retry-backoff" help:"wait between tries on the same candidate"`
	HedgeRatio   float64       `flag:"hedge-ratio" arg:"SHARE" help:"share of prefill legs, 0.02 at most, that may get a second one, to the request's next candidate, when they take longer than 95 of 100 recent ones to their pod: the first answer is used, and the other leg ends. 0: none"`
	Sampling     bool          `flag:"enable-prefiller-sampling" env:"ENABLE_PREFILLER_SAMPLING" help:"begin with a random candidate instead of the first"`
	BlockSize    int           `flag:"prefill-block-size" arg:"TOKENS" help:"KV cache block size of the prefill engines; checks the length of hand-offs. 0 = unknown: with nixlv2 it is learned from the first hand-offs of each engine"`
	BlockBytes   int64         `flag:"kv-block-bytes" arg:"BYTES" help:"bytes of the KV cache that one block has, over all layers and ranks; for the metric tandem_kv_link_bytes_total. 0 = unknown, no such metric"`
	// BootstrapPort has llm-d's variable.
	BootstrapPort int `flag:"sglang-bootstrap-port" env:"SGLANG_BOOTSTRAP_PORT" arg:"PORT" help:"port of the bootstrap servers of SGLang's prefill engines; 0: each engine is asked for its own"`
	// MooncakePort has llm-d's flag and variable.
	MooncakePort int `flag:"mooncake-bootstrap-port" env:"MOONCAKE_BOOTSTRAP_PORT" arg:"PORT" help:"port of the bootstrap servers of prefill engines with vLLM's MooncakeConnector (VLLM_MOONCAKE_BOOTSTRAP_PORT)"`
	// P2PPort has llm-d's flag, variable and default.
	P2PPort int `flag:"p2p-connector-port" env:"P2P_CONNECTOR_PORT" arg:"PORT" help:"port of the peer-to-peer tiers of prefill engines with vLLM's OffloadingConnector (VLLM_P2P_SIDE_CHANNEL_PORT, 5710 by default); a data-parallel rank has the port of its number above it"`
	// Pull has llm-d's flag.
	Pull     bool `flag:"enable-p2p-pull" help:"with --kv-connector=nixlv2: where the picker names a pod that has blocks of a prompt (x-kv-cache-source-host-port), have the engine that computes the prompt fetch them from there. All engines then need vLLM's MultiConnector with NixlConnector and OffloadingConnector. With --kv-connector=offloading that is so without the flag"`
	ReadBack bool `flag:"read-back" help:"with --kv-connector=nixlv2: where the picker names this pod as the one that has most of a prompt, such as the earlier turns of a conversation, have the prefill engine read that from the decode engine over NIXL and compute the rest. Prefill engines need bidirectional_kv_xfer in their kv_connector_extra_config"`
	// PodIP has llm-d's variable.
	PodIP     string `flag:"pod-ip" env:"POD_IP" arg:"IP" help:"address of this pod: its engine is not told to fetch blocks from itself, which a picker that is not up to date may name. Empty: not known"`
	Discovery string `flag:"prefill-discovery" arg:"SOURCE" help:"source of the prefill pods to connect to and warm up: dns://HOST:PORT, or file:PATH with lines of HOST:PORT. Routing does not depend on it"`
	// TLS returns the TLS setup of a new connection to a prefill engine; nil for plaintext. The program declares the flags.
	TLS func() *tls.Config
}

// maxHedgeRatio bounds --hedge-ratio. Legs of which more are late need other pods: second ones would make all of them later.
const maxHedgeRatio = 0.02

// hedgeProblems reports what is wrong with HedgeRatio. The hand-off of the leg that is not used must be released without having been
// read, or hold no memory.
func (p *Prefill) hedgeProblems(connector string, report func(flag, format string, args ...any)) {
	switch {
	case !(p.HedgeRatio >= 0 && p.HedgeRatio <= maxHedgeRatio):
		report("hedge-ratio", "%v is not a share from 0 to %v: prefill pods that are late more often need to be more", p.HedgeRatio, maxHedgeRatio)
	case p.HedgeRatio > 0 && connector != "nixlv2" && connector != "offloading" && connector != "shared-storage":
		report("hedge-ratio", "has no effect with --kv-connector=%s: only nixlv2, offloading and shared-storage have prefill legs of which one can be left unused", connector)
	}
}

// Encode configures encoder legs: images, audio and video are encoded on other pods. TLS is as for prefill legs.
type Encode struct {
	Connector string `flag:"ec-connector" arg:"NAME" help:"how encodings reach the engines that compute prompts: ec-example (vLLM's ECExampleConnector, files), ec-nixl (ECCPUConnector with ec_enable_nixl); empty: no encoder is used, whatever the picker names"`
	// References are off by default because an engine that has to compute such a prompt, and does not find the encoding, ends.
	References bool          `flag:"encoder-references" help:"replace images by references to their encodings in the legs, so that no other engine gets the images. Every engine that gets legs must have an encoder connector (ec_consumer), or it may end when it computes a prompt again"`
	Timeout    time.Duration `flag:"encode-timeout" help:"longest time that the encoder legs of a request may take, all tries together; then the engine that computes the prompt encodes"`
}

// Fallback bounds local prefill of requests that were planned remote, and how old a hand-off may be.
type Fallback struct {
	Ratio float64       `flag:"fallback-ratio" help:"share of all requests that may be prefilled locally although they were planned remote"`
	Burst int           `flag:"fallback-burst" arg:"REQUESTS" help:"how many such requests may come at once"`
	Lease time.Duration `flag:"lease" help:"how long prefill engines keep the KV cache of a finished prefill (vLLM: kv_lease_duration); a hand-off older than two thirds of it is not used"`
	Drain time.Duration `flag:"drain-timeout" help:"how long running requests may go on after SIGTERM"`
}

// Continue says which streams go on at another engine when theirs dies or hangs.
type Continue struct {
	Times     int    `flag:"continue-times" arg:"NUMBER" help:"how often a stream of chat or completions whose decode engine dies or hangs may go on at another engine, and how often an answer of which nothing was sent may be asked anew of one; 0: never. Requests that may go on are buffered also if they are not split, and their engine is asked for token ids"`
	Discovery string `flag:"continue-discovery" arg:"SOURCE" help:"source of the decode pods at which such a stream may go on if those that the picker named with the request do not take it, which may have ended since: dns://HOST:PORT, or file:PATH with lines of HOST:PORT; empty: none"`
	OnPrefill bool   `flag:"continue-on-prefill" help:"let such a stream go on at a prefill pod of its request if no other decode pod can take it"`
	Burst     int    `flag:"continue-burst" arg:"STREAMS" help:"how many streams whose engine has failed may go on at once; each request that comes allows a tenth of one more"`
	// Evacuated is counted from the evacuation, because a pod's grace period is: the hook that evacuates is its first part, and how
	// long that takes is not known before.
	Evacuated time.Duration `flag:"evacuate-timeout" help:"how long after an evacuation (POST /evacuate on the admin port) streams that have left for another engine may go on, if that is longer than --drain-timeout after SIGTERM allows"`
	// Memory bounds the token ids that are kept, over all streams, in bytes. The program declares the flag.
	Memory int64
}

// Keep configures notices to prefill engines, and the warm-up.
type Keep struct {
	// Notifier reaches the prefill engines' agents. nil: only decode releases hand-offs. The sidecar does not close it. The
	// program declares the flags.
	Notifier    transfer.Notifier
	SideChannel int  `flag:"side-channel-port" arg:"PORT" help:"port of the NIXL side channel (vLLM: VLLM_NIXL_SIDE_CHANNEL_PORT) of the prefill engines that --prefill-discovery finds. Hand-offs name the port themselves"`
	WarmUp      bool `flag:"warm-up" help:"send one tiny request through each new pair of this decode engine and a prefill engine that --prefill-discovery finds, so that no user's request pays for the engines' own first handshake"`
}

// Trust configures what the sidecar accepts from its callers.
type Trust struct {
	PDHeader string             `flag:"pd-header" enum:"on,off" help:"whether clients may force or bypass P/D with x-tandem-pd"`
	Allow    []intake.AllowRule `flag:"prefill-allow" arg:"CIDR[:PORT]" help:"where prefill legs may go; default: private ranges, any port"`
	Loopback bool               `flag:"prefill-allow-loopback" help:"also allow prefill legs to this machine's own addresses (127.0.0.0/8 and ::1), to try P/D on one machine. Every client of the data port can then have requests sent to any port that listens there"`
	// Pods reports whether an address is that of a pod that prefill legs may go to, if Allow allows it too; nil: Allow alone
	// decides. The program declares the flags.
	Pods func(netip.Addr) bool
	// Secrets returns the secrets of which x-tandem-auth must carry one with each prefill header; nil if none is required.
	// The program declares the flag.
	Secrets func() pd.Secrets
	// BodyPause bounds silence. pd.BodyRate is the rate at which a body must come in addition.
	BodyPause time.Duration `flag:"body-timeout" help:"longest wait for the next part of a request body; on average it must come with 1 KiB/s at least"`
	// AnswerPause is as long as Envoy's stream_idle_timeout, which is for clients in front of it.
	AnswerPause time.Duration `flag:"answer-timeout" help:"longest time in which a client may read nothing of its answer; then the answer ends, and the engine drops the request"`
	// BodyLimit is the size of a request body, in bytes, above which it is refused with 413. BufferLimit is how many bytes of
	// bodies may be buffered for prefill on other pods, over all requests; more are refused with 503. The program declares
	// the flags.
	BodyLimit, BufferLimit int64
}

// Tell configures what users and operators are told about single requests.
type Tell struct {
	Pods   bool          `flag:"tell-pods" help:"answer with the header x-tandem-pods, which names the pods that served the request; for clients that may know addresses inside the cluster"`
	Slow   time.Duration `flag:"slow-request" help:"log requests at info that took this long, as failed ones and those that fell back to local prefill always are; 0: none is slow. The others are logged at debug"`
	Recent int           `flag:"recent-requests" arg:"NUMBER" help:"requests that the admin port can tell about (/debug/requests, tandem why), and as many that were slow, failed or fell back; at most 4 MiB each. 0: none"`
}

// maxRanks is the largest number of data-parallel ranks of one pod: more than any machine has accelerators.
const maxRanks = 64

// recentBytes bounds the memory of recent requests, for each of the two kinds (bytes).
const recentBytes = 4 << 20

// Defaults returns the configuration of a sidecar without flags.
func Defaults() Config {
	return Config{
		Engine:  Engine{Host: "127.0.0.1", Port: 8200, Ranks: 1, Connector: "nixlv2", FirstEvent: 30 * time.Second, HangAfter: 800 * time.Millisecond, IdleConns: 1024},
		Prefill: Prefill{Timeout: 60 * time.Second, RetryBackoff: 200 * time.Millisecond, MooncakePort: dialect.MooncakePort, P2PPort: dialect.P2PPort},
		MoRIIO: MoRIIO{DecodeNotify: dialect.MoRIIONotifyPort, DecodeHandshake: dialect.MoRIIOHandshakePort, PrefillNotify: dialect.MoRIIONotifyPort,
			PrefillHandshake: dialect.MoRIIOHandshakePort, Wait: 30 * time.Second, Tensor: 1, Data: 1, ResolveTTL: 30, ResolveTimeout: 5},
		Encode: Encode{Timeout: 30 * time.Second},
		Fallback: Fallback{
			Ratio: pd.FallbackRatio, Burst: pd.FallbackBurst,
			Lease: 30 * time.Second, // vLLM's default kv_lease_duration
			Drain: 60 * time.Second,
		},
		Continue: Continue{Burst: 256, Memory: 256 << 20},
		Keep:     Keep{SideChannel: 5600},
		Tell:     Tell{Recent: 1000},
		Trust:    Trust{PDHeader: "on", BodyPause: 30 * time.Second, AnswerPause: 5 * time.Minute, BodyLimit: 64 << 20, BufferLimit: 512 << 20},
	}
}

// readBackProblems reports what is wrong with ReadBack. Blocks that are read back expire by the clock of the machine that the engine is on.
func (c *Config) readBackProblems(report func(flag, format string, args ...any)) {
	if !c.Prefill.ReadBack {
		return
	}
	ip, err := netip.ParseAddr(c.Engine.Host)
	switch {
	case c.protocol() != "nixlv2":
		report("read-back", "prefill engines of --kv-connector=%s do not read back: only those of nixlv2 do", c.protocol())
	case c.Prefill.Pull:
		report("read-back", "an engine has one way to get blocks that it lacks: leave out either this or --enable-p2p-pull")
	case c.Prefill.PodIP == "":
		report("read-back", "needs --pod-ip, by which the picker names this pod")
	case c.Engine.Host != "localhost" && (err != nil || !ip.IsLoopback()):
		report("read-back", "needs the decode engine in this pod: --model-server-host=%s is not a loopback address", c.Engine.Host)
	}
}

// Problems reports every invalid setting, by the name of its flag.
func (c *Config) Problems(report func(flag, format string, args ...any)) {
	if _, ok := dialect.New(c.Engine.Connector, dialect.Options{}); !ok {
		report("kv-connector", "%q is not one of the hand-off protocols this sidecar speaks (%s)", c.Engine.Connector, dialect.Names())
	}
	c.MoRIIO.problems(c, report)
	if c.Encode.Connector != "" && encode.Find(c.Encode.Connector) == nil {
		report("ec-connector", "%q is not one of the encoder connectors this sidecar knows (%s)", c.Encode.Connector, encode.Names())
	}
	if d, ok := dialect.New(c.Engine.Connector, dialect.Options{}); ok && c.Encode.Connector != "" {
		if _, reads := d.(dialect.EncodingReader); !reads {
			report("ec-connector", "has no effect with --kv-connector=%s: only vLLM's engines read encodings", c.Engine.Connector)
		}
	}
	if c.Encode.References && c.Encode.Connector == "" {
		report("encoder-references", "has no effect without --ec-connector: name the connector, or leave it out")
	}
	if u, err := url.Parse(c.Engine.url(0)); err != nil || c.Engine.Host == "" || u.Hostname() != c.Engine.Host {
		report("model-server-host", "%q is neither an address (IPv6 without brackets) nor a DNS name", c.Engine.Host)
	}
	if c.Engine.Port < 1 || c.Engine.Port > 65535 {
		report("model-server-port", "%d is not a port (1 to 65535)", c.Engine.Port)
	}
	if c.Engine.Ranks < 1 || c.Engine.Ranks > maxRanks {
		report("data-parallel-size", "%d is not a number of ranks (1 to %d)", c.Engine.Ranks, maxRanks)
	} else if c.Engine.Port <= 65535 && c.Engine.Port+c.Engine.Ranks-1 > 65535 {
		report("data-parallel-size", "the ports of %d ranks from --model-server-port=%d on end above 65535", c.Engine.Ranks, c.Engine.Port)
	}
	for _, d := range []struct {
		flag string
		d    time.Duration
	}{
		{"first-event-timeout", c.Engine.FirstEvent}, {"prefill-timeout", c.Prefill.Timeout}, {"encode-timeout", c.Encode.Timeout}, {"lease", c.Fallback.Lease}, {"body-timeout", c.Trust.BodyPause}, {"answer-timeout", c.Trust.AnswerPause}, {"drain-timeout", c.Fallback.Drain},
	} {
		if d.d <= 0 {
			report(d.flag, "%s is not a positive time", d.d)
		}
	}
	for _, n := range []struct {
		flag string
		n    int
	}{
		{"max-idle-conns-per-host", c.Engine.IdleConns}, {"prefill-max-retries", c.Prefill.MaxRetries}, {"fallback-burst", c.Fallback.Burst},
		{"continue-times", c.Continue.Times}, {"continue-burst", c.Continue.Burst}, {"prefill-block-size", c.Prefill.BlockSize}, {"kv-block-bytes", int(c.Prefill.BlockBytes)},
		{"slow-request", int(c.Tell.Slow)}, {"recent-requests", c.Tell.Recent}, {"prefill-retry-backoff", int(c.Prefill.RetryBackoff)}, {"hang-after", int(c.Engine.HangAfter)},
		{"evacuate-timeout", int(c.Continue.Evacuated)},
	} {
		if n.n < 0 {
			report(n.flag, "must not be negative")
		}
	}
	if !(c.Fallback.Ratio >= 0 && c.Fallback.Ratio <= 1) {
		report("fallback-ratio", "%v is not a share from 0 to 1", c.Fallback.Ratio)
	}
	c.Prefill.hedgeProblems(c.protocol(), report)
	if c.Prefill.Discovery != "" {
		if _, err := warmup.ParseDiscovery(c.Prefill.Discovery); err != nil {
			report("prefill-discovery", "%w", err)
		}
	}
	if c.Continue.Discovery != "" {
		if _, err := warmup.ParseDiscovery(c.Continue.Discovery); err != nil {
			report("continue-discovery", "%w", err)
		}
	}
	for _, f := range []struct {
		flag string
		set  bool
	}{
		{"continue-discovery", c.Continue.Discovery != ""}, {"evacuate-timeout", c.Continue.Evacuated > 0},
	} {
		if f.set && c.Continue.Times == 0 {
			report(f.flag, "has no effect without --continue-times: set that, or leave it out")
		}
	}
	if c.Keep.SideChannel < 1 || c.Keep.SideChannel > 65535 {
		report("side-channel-port", "%d is not a port (1 to 65535)", c.Keep.SideChannel)
	}
	if c.Prefill.MooncakePort < 1 || c.Prefill.MooncakePort > 65535 {
		report("mooncake-bootstrap-port", "%d is not a port (1 to 65535)", c.Prefill.MooncakePort)
	}
	if c.Prefill.Pull && c.protocol() != "nixlv2" && c.protocol() != "offloading" {
		report("enable-p2p-pull", "engines of --kv-connector=%s do not pull: only nixlv2 and offloading do", c.protocol())
	}
	c.readBackProblems(report)
	if ip := c.Prefill.PodIP; ip != "" {
		if _, err := netip.ParseAddr(ip); err != nil {
			report("pod-ip", "%q is not an IP address", ip)
		}
	}
	if c.Prefill.P2PPort < 1 || c.Prefill.P2PPort > 65535 {
		report("p2p-connector-port", "%d is not a port (1 to 65535)", c.Prefill.P2PPort)
	}
	if c.Keep.WarmUp && c.Prefill.Discovery == "" {
		report("warm-up", "says how to warm up, but not whom: set --prefill-discovery as well")
	}
	if c.Continue.Memory < 0 {
		report("continue-memory", "must not be negative")
	}
	if c.Trust.BodyLimit < 1 {
		report("body-limit", "must be at least 1 byte")
	}
	if c.Trust.BufferLimit/2 < c.Trust.BodyLimit {
		report("buffer-limit", "must be twice the body-limit (%d bytes) at least, or one large body would keep all others out", c.Trust.BodyLimit)
	}
	if c.Trust.PDHeader != "on" && c.Trust.PDHeader != "off" {
		report("pd-header", "%q is neither on nor off", c.Trust.PDHeader)
	}
}
