package nixl

import (
	"fmt"
	"os"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// Config says how an agent starts. Its zero value needs a Name only.
type Config struct {
	// Name is what peers call the agent. NIXL wants names that were never used before, so a random part is added to it.
	Name string
	// Library is the path of libnixl_capi.so, or of its folder. "": what EnvLibrary names, else what the dynamic loader
	// finds, else an installed wheel (see Find).
	Library string
	// Progress is how often the library's own thread looks for work, default 1 ms: about 2 % of a core while idle. The
	// library takes 0 as "all the time", which costs a whole core, so less than 100 µs is refused.
	Progress time.Duration
	// Poll is how often messages are fetched, default 10 ms.
	Poll time.Duration
	// TLS are the means of transport that UCX may use, such as "tcp" or "rc,cuda_copy". "": what UCX_TLS says, else all.
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

// defaultEnvironment is read by the library while it is opened. What the user has set stands.
var defaultEnvironment = map[string]string{
	"UCX_DEBUG_SIGNO":          "0",     // else UCX takes SIGHUP away from Go
	"UCX_HANDLE_ERRORS":        "none",  // else its debug builds take SIGSEGV, and nil pointers freeze the process
	"UCX_WARN_UNUSED_ENV_VARS": "n",     // of a pod that sets some for its engine
	"UCX_MEM_MMAP_HOOK_MODE":   "none",  // else it patches libc for 0.4 s, for calls that Go does not make
	"UCX_LOG_LEVEL":            "fatal", // what goes wrong is returned, and a peer that is gone is no news
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

// TransportConfig says how a Transport starts. Its zero value needs a Name only. Peers know the agent by just that name.
type TransportConfig struct {
	Config
	// Bounce is how many bytes of reads move at the same time, through memory of the transport's own: default 64 MiB,
	// rounded down to whole slots of 4 MiB, at least one. The memory is taken when it is first needed. Reads that were given
	// up can hold three times as much besides (see Transport.Memory).
	Bounce int
	// Stall is how long a part of a read (4 MiB at most), or a notification, may take before the call fails with
	// transfer.ErrGone, default 10 s.
	Stall time.Duration
	// Quarantine is how long a read that was given up is watched before its memory is, too; default one minute.
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
