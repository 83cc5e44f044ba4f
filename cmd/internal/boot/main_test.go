package boot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boottest"
)

// TestMain runs the test binary as the program of the scripts.
func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"server": func() { Main(server) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// settings is the config of the program in the scripts.
type settings struct {
	Listen  listenSettings  `group:"Listening"`
	Prefill prefillSettings `group:"Prefill leg"`
	Log     Log             `group:"Logging"`

	Then string `flag:"then" enum:"stop,fail,self-term,self-kill,clash" help:"what to do after the start"`

	_ struct{} `flag:"connector" refused:"use --kv-connector"`
	_ bool     `flag:"tracing" ignored:"set OTEL_EXPORTER_OTLP_ENDPOINT instead"`
	_ struct{} `env:"BOOTSTRAP_PORT" ignored:"no protocol asks for it"`
}

type listenSettings struct {
	Host   string `flag:"host" help:"address of the listener"`
	Port   int    `flag:"port" alias:"vllm-port" env:"VLLM_PORT" help:"port of the listener"`
	Secure bool   `flag:"secure-serving" alias:"secure-proxy" env:"SECURE_PROXY" help:"serve TLS"`
}

func (s *listenSettings) Validate(p *Problems) { p.RequirePort("port", s.Port) }

type prefillSettings struct {
	Timeout time.Duration `flag:"prefill-timeout" help:"longest prefill"`
	Allow   []string      `flag:"prefill-allow" arg:"CIDR[,…]" help:"networks that prefill pods may be in"`
	Ratio   float64       `flag:"fallback-ratio" help:"share of requests that may fall back"`
	Limit   Bytes         `flag:"body-limit" help:"largest body"`
	Secret  Secret        `flag:"auth" help:"shared secret"`
	Ranks   []int         `flag:"ranks" help:"data-parallel ranks"`
}

func (s *prefillSettings) Validate(p *Problems) {
	p.Require(s.Timeout > 0, "prefill-timeout", "%v is not above 0", s.Timeout)
	p.Require(s.Ratio >= 0 && s.Ratio <= 1, "fallback-ratio", "%v is not between 0 and 1", s.Ratio)
}

func defaults() settings {
	return settings{
		Listen:  listenSettings{Host: "127.0.0.1"},
		Prefill: prefillSettings{Timeout: time.Minute, Ratio: 0.1, Limit: 64 << 20, Allow: []string{"10.0.0.0/8"}},
		Then:    "stop",
	}
}

func server(ctx context.Context, std IO, args []string) error {
	cfg := defaults()
	if _, err := (Program{Summary: "server listens."}).Load(std, &cfg, args); err != nil {
		return err
	}
	l, err := Listen(ctx, "port", net.JoinHostPort(cfg.Listen.Host, fmt.Sprint(cfg.Listen.Port)))
	if err != nil {
		return err
	}
	defer l.Close()
	if err := Ready(std.Stdout, std.Name, Addresses{"http": l.Addr(), "admin": l.Addr()}); err != nil {
		return err
	}
	cfg.Log.New(std).Debug("ready")
	return after(ctx, cfg.Then, l)
}

// after does what the --then flag asks for, once the program is ready.
func after(ctx context.Context, what string, l net.Listener) error {
	switch what {
	case "fail":
		return errors.New("serving: it broke")
	case "clash":
		second, err := Listen(ctx, "port", l.Addr().String())
		if err == nil {
			second.Close()
		}
		return err
	case "self-term":
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	case "self-kill":
		// It sends two kinds of signal, because the system merges equal ones.
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			if err := syscall.Kill(os.Getpid(), s); err != nil {
				return err
			}
		}
		select {} // ignores its context
	}
	return nil
}

func TestRunReportsOnceAndGivesTheCode(t *testing.T) {
	cause := errors.New("port is gone")
	tests := []struct {
		name string
		err  error
		code int
		text string
	}{
		{"clean", nil, CodeOK, ""},
		{"plain error", fmt.Errorf("serving: %w", cause), CodeFailed, "prog: serving: port is gone\n"},
		{"usage", Usagef("reading: %w", cause), CodeUsage, "prog: reading: port is gone\n"},
		{"config", Configf("reading: %w", cause), CodeConfig, "prog: reading: port is gone\n"},
		{"missing", Missingf("reading: %w", cause), CodeMissing, "prog: reading: port is gone\n"},
		{"wrapped exit", fmt.Errorf("starting: %w", Exit{CodeMissing, cause}), CodeMissing, "prog: starting: port is gone\n"},
		{"silent exit", Exit{Code: CodeConfig}, CodeConfig, ""},
		{"own cancel without a signal", context.Canceled, CodeFailed, "prog: context canceled\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stderr strings.Builder
			code := Run(t.Context(), IO{Name: "prog", Stderr: &stderr}, []string{"a"},
				func(_ context.Context, _ IO, args []string) error {
					if len(args) != 1 || args[0] != "a" {
						t.Errorf("args = %q", args)
					}
					return tt.err
				})
			if code != tt.code || stderr.String() != tt.text {
				t.Errorf("Run = %d, %q; want %d, %q", code, stderr.String(), tt.code, tt.text)
			}
		})
	}
}

func TestFirstSignalCancelsSecondEnds(t *testing.T) {
	signals := make(chan os.Signal)
	cancelled, release, code := make(chan struct{}), make(chan struct{}), make(chan int)
	ended := make(chan struct{})
	var stderr strings.Builder
	go func() {
		code <- run(t.Context(), IO{Name: "prog", Stderr: &stderr}, nil,
			func(ctx context.Context, _ IO, _ []string) error {
				defer close(ended)
				<-ctx.Done()
				close(cancelled)
				<-release
				return nil
			}, signals)
	}()
	signals <- syscall.SIGTERM
	<-cancelled
	signals <- syscall.SIGINT
	if got := <-code; got != CodeFailed || !strings.Contains(stderr.String(), "second signal (interrupt)") {
		t.Errorf("run = %d, %q; want %d and the second signal named", got, stderr.String(), CodeFailed)
	}
	close(release)
	<-ended
}

func TestExitText(t *testing.T) {
	cause := errors.New("cause")
	if err := (Exit{CodeUsage, cause}); !errors.Is(err, cause) || err.Error() != "cause" {
		t.Errorf("Exit reads %q, wraps %v", err, errors.Unwrap(err))
	}
	if got := (Exit{Code: CodeMissing}).Error(); got != "exit code 4" {
		t.Errorf("Exit without cause reads %q", got)
	}
}
