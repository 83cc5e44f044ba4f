package boot

import (
	"encoding"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// load runs Load over the program of the scripts.
func load(t *testing.T, p Program, env map[string]string, args ...string) (settings, []string, error) {
	t.Helper()
	cfg := defaults()
	std := IO{Name: "server", Stdout: io.Discard, Stderr: io.Discard,
		Env: func(k string) (string, bool) { v, ok := env[k]; return v, ok }}
	operands, err := p.Load(std, &cfg, args)
	return cfg, operands, err
}

func TestPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(file, []byte("port: 3\nprefill-allow: [file]\nfallback-ratio: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inFile := []string{"--config", file}
	tests := []struct {
		name string
		env  map[string]string
		args []string
		port int
		nets []string
	}{
		{"default", nil, nil, 0, []string{"10.0.0.0/8"}},
		{"file over default", nil, inFile, 3, []string{"file"}},
		{"file named by the environment", map[string]string{"TANDEM_CONFIG": file}, nil, 3, []string{"file"}},
		{"environment over file", map[string]string{"TANDEM_PORT": "2", "TANDEM_PREFILL_ALLOW": "env"}, inFile, 2, []string{"env"}},
		{"another product's variable over file", map[string]string{"VLLM_PORT": "6"}, inFile, 6, []string{"file"}},
		{"own variable over another product's", map[string]string{"TANDEM_PORT": "2", "VLLM_PORT": "6"}, nil, 2, []string{"10.0.0.0/8"}},
		{"empty variable is none", map[string]string{"TANDEM_PORT": ""}, inFile, 3, []string{"file"}},
		{"flag over environment", map[string]string{"TANDEM_PORT": "2", "TANDEM_PREFILL_ALLOW": "env"},
			append([]string{"--port", "1", "--prefill-allow", "a, b", "--prefill-allow=c"}, inFile...), 1, []string{"a", "b", "c"}},
		{"last of several", nil, []string{"--port=4", "--vllm-port=5"}, 5, []string{"10.0.0.0/8"}},
		{"empty list", nil, []string{"--prefill-allow="}, 0, []string{}},
		{"check and version only on the command line", map[string]string{"TANDEM_CHECK": "true", "TANDEM_VERSION": "v1"}, nil, 0, []string{"10.0.0.0/8"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, _, err := load(t, Program{}, tt.env, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			if cfg.Listen.Port != tt.port || !reflect.DeepEqual(cfg.Prefill.Allow, tt.nets) {
				t.Errorf("port %d, nets %q; want %d, %q", cfg.Listen.Port, cfg.Prefill.Allow, tt.port, tt.nets)
			}
		})
	}
}

func TestOperands(t *testing.T) {
	tests := []struct {
		name string
		args string
		want string
		port int
	}{
		{"none", "--port 1", "", 1},
		{"after the flags", "--port 1 a b", "a b", 1},
		{"between the flags", "a --port 1 b", "a b", 1},
		{"flags after two dashes are operands", "a -- --port 1", "a --port 1", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, operands, err := load(t, Program{Operands: "FILE…"}, nil, strings.Fields(tt.args)...)
			if got := strings.Join(operands, " "); err != nil || got != tt.want || cfg.Listen.Port != tt.port {
				t.Errorf("operands %q, port %d, %v; want %q, %d", got, cfg.Listen.Port, err, tt.want, tt.port)
			}
		})
	}
}

func TestTextTypes(t *testing.T) {
	tests := []struct {
		name  string
		value interface {
			encoding.TextMarshaler
			encoding.TextUnmarshaler
		}
		in, out string // out empty: in is refused
	}{
		{"plain bytes", new(Bytes), "65537", "65537"},
		{"zero bytes", new(Bytes), "0", "0"},
		{"mebibytes", new(Bytes), "64MiB", "64MiB"},
		{"largest unit", new(Bytes), "2048MiB", "2GiB"},
		{"negative size", new(Bytes), "-1", ""},
		{"overflowing size", new(Bytes), "9999999999GiB", ""},
		{"decimal unit", new(Bytes), "64MB", ""},
		{"level", new(LogLevel), "WARN", "warn"},
		{"default verbosity", new(LogLevel), "2", "info"},
		{"trace verbosity", new(LogLevel), "5", "debug"},
		{"unknown level", new(LogLevel), "loud", ""},
		{"format", new(LogFormat), "json", "json"},
		{"llm-d's format", new(LogFormat), "console", "text"},
		{"unknown format", new(LogFormat), "xml", ""},
		{"secret", new(Secret), "hunter2", "(set)"},
		{"mask of a secret", new(Secret), "(set)", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.value.UnmarshalText([]byte(tt.in))
			if tt.out == "" {
				if err == nil {
					t.Errorf("%q was taken", tt.in)
				}
				return
			}
			if got, _ := tt.value.MarshalText(); err != nil || string(got) != tt.out {
				t.Errorf("%q reads as %q, %v; want %q", tt.in, got, err, tt.out)
			}
		})
	}
}

func TestSecretIsNotLogged(t *testing.T) {
	var out strings.Builder
	slog.New(slog.NewTextHandler(&out, nil)).Info("start", "auth", Secret("hunter2"))
	if strings.Contains(out.String(), "hunter2") || !strings.Contains(out.String(), "(set)") {
		t.Errorf("logged %q", out.String())
	}
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 30 * time.Second: "30s", time.Minute: "1m", 10 * time.Minute: "10m", time.Hour: "1h",
		time.Hour + time.Second: "1h0m1s", 90 * time.Second: "1m30s", 1500 * time.Microsecond: "1.5ms",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("formatDuration(%d) = %q, want %q", d, got, want)
		}
	}
}

func TestNearestName(t *testing.T) {
	cfg := defaults()
	table := newTable(&cfg)
	for name, want := range map[string]string{
		"prot": "port", "vllm-prt": "vllm-port", "prefill_timeout": "prefill-timeout", "conector": "", "quux": "", "a": "",
	} {
		if got := table.nearest(name); got != want {
			t.Errorf("nearest(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestDeclarationMistakesPanic(t *testing.T) {
	tests := map[string]any{
		"not a pointer": settings{},
		"declared twice": &struct {
			A int `flag:"port" help:"x"`
			B int `flag:"other" alias:"port" help:"x"`
		}{},
		"no help": &struct {
			A int `flag:"port"`
		}{},
		"unexported": &struct {
			a int `flag:"port" help:"x"`
		}{},
		"unsupported type": &struct {
			A map[string]int `flag:"port" help:"x"`
		}{},
	}
	for name, cfg := range tests {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if r, ok := recover().(string); !ok || !strings.HasPrefix(r, "boot: ") {
					t.Errorf("recovered %v, want a panic of boot", r)
				}
			}()
			newTable(cfg)
		})
	}
}

func TestProblems(t *testing.T) {
	cfg := defaults()
	p := &Problems{table: newTable(&cfg)}
	cause := errors.New("no such host")
	p.Add("host", "looking up: %w", cause)
	p.Add("host", "a consequence")
	p.RequirePort("vllm-port", 65536)
	p.RequirePort("metrics-port", -1)
	p.RequirePort("admin-port", 65535)
	err := p.err(false)
	const want = `checking the configuration:
host: looking up: no such host
port: 65536 is not a port (0 to 65535; 0 takes any free one)
metrics-port: -1 is not a port (0 to 65535; 0 takes any free one)`
	if !errors.Is(err, cause) || err.Error() != want {
		t.Errorf("err = %v", err)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestReadyLineReportsALostReader(t *testing.T) {
	if err := Ready(failingWriter{}, "epp", nil); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Ready = %v", err)
	}
}
