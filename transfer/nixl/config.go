package nixl

import (
	"fmt"
	"os"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// Config configures an agent. The zero value of all fields but Name is valid.
type Config struct {
	// Name is the name that peers have for the agent. NIXL needs names that were never used before, so a random part is added.
	Name string
	// Library is the path of libnixl_capi.so, or of its folder. "": the one that EnvLibrary names, else the one that the dynamic
	// loader finds, else that of an installed wheel (see candidates).
	Library string
	// Progress is the interval of the library's own thread, default 1 ms, which costs about 2 % of a core while idle. The
	// library treats 0 as "all the time", which costs a whole core, so less than 100 µs is refused.
	Progress time.Duration
	// Poll is the interval at which messages are fetched, default 10 ms.
	Poll time.Duration
	// TLS are the UCX transports that may be used, such as "tcp" or "rc,cuda_copy". "": those of UCX_TLS, else all.
	TLS string
}

const (
	defaultProgress = time.Millisecond
	minProgress     = 100 * time.Microsecond
	defaultPoll     = 10 * time.Millisecond
)

func (c *Config) setDefaults() {
	if c.Progress == 0 {
		c.Progress = defaultProgress
	}
	if c.Poll == 0 {
		c.Poll = defaultPoll
	}
}

func (c *Config) validate() error {
	if c.Progress < minProgress {
		return fmt.Errorf("progress interval %v: want %v or more", c.Progress, minProgress)
	}
	if c.Poll < 0 {
		return fmt.Errorf("poll interval %v: want more than 0", c.Poll)
	}
	return nil
}

// defaultEnvironment is set before the library is opened, which reads it then. Variables that the user has set are not changed.
var defaultEnvironment = map[string]string{
	"UCX_DEBUG_SIGNO":          "0",     // otherwise UCX takes SIGHUP away from Go
	"UCX_HANDLE_ERRORS":        "none",  // otherwise its debug builds take SIGSEGV, and nil pointers freeze the process
	"UCX_WARN_UNUSED_ENV_VARS": "n",     // a pod may set some for its engine
	"UCX_MEM_MMAP_HOOK_MODE":   "none",  // otherwise UCX patches libc for 0.4 s, for calls that Go does not make
	"UCX_LOG_LEVEL":            "fatal", // errors are returned, and a lost peer is expected
	"NIXL_LOG_LEVEL":           "FATAL",
}

func setEnvironment() error {
	for name, value := range defaultEnvironment {
		if _, ok := os.LookupEnv(name); ok {
			continue
		}
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("setting %s for the library: %w", name, err)
		}
	}
	return nil
}

// TransportConfig configures a Transport. The zero value of all fields but Name is valid. Peers have exactly that name for the
// agent.
type TransportConfig struct {
	Config
	// Bounce bounds the memory that concurrent reads use, in bytes: default 64 MiB, rounded down to whole slots of 4 MiB, at
	// least one. Slots are mapped when they are first needed. Cancelled reads can use three times as much in addition (see
	// Transport.Memory).
	Bounce int
	// Stall is how long a part of a read (4 MiB at most), or a notification, may take before the call fails with
	// transfer.ErrGone, default 10 s.
	Stall time.Duration
	// Quarantine is how long the transport waits for the end of a cancelled read before it stops using that memory; default one
	// minute.
	Quarantine time.Duration
}

const (
	defaultBounce     = 64 << 20
	defaultStall      = 10 * time.Second
	defaultQuarantine = time.Minute
)

func (c *TransportConfig) setDefaults() {
	c.Config.setDefaults()
	if c.Bounce == 0 {
		c.Bounce = defaultBounce
	}
	if c.Stall == 0 {
		c.Stall = defaultStall
	}
	if c.Quarantine == 0 {
		c.Quarantine = defaultQuarantine
	}
}

func (c *TransportConfig) validate() error {
	if err := c.Config.validate(); err != nil {
		return err
	}
	if c.Bounce < 0 || c.Stall < 0 || c.Quarantine < 0 {
		return fmt.Errorf("%w: bounce memory of %d bytes, stall time %v, quarantine %v: want more than 0",
			transfer.ErrInvalid, c.Bounce, c.Stall, c.Quarantine)
	}
	return nil
}
