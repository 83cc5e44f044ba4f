package nixl

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/transfertest"
)

// place makes a file where the library might lie.
func place(t *testing.T, parts ...string) string {
	t.Helper()
	path := filepath.Join(parts...)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCandidates(t *testing.T) {
	venv := t.TempDir()
	cu12 := place(t, venv, "lib/python3.12/site-packages/.nixl_cu12.mesonpy.libs", soname)
	cu13 := place(t, venv, "lib/python3.12/site-packages/.nixl_cu13.mesonpy.libs", soname)
	other := place(t, t.TempDir(), "mine.so")
	t.Setenv("VIRTUAL_ENV", venv)
	for name, c := range map[string]struct {
		env, named string
		want       []string
	}{
		"nothing named":     {"", "", []string{soname, cu12, cu13}},
		"by the variable":   {other, "", []string{other}},
		"by the option":     {"elsewhere", other, []string{other}},
		"a folder":          {filepath.Dir(cu12), "", []string{cu12}},
		"what is not there": {"", "nowhere", []string{"nowhere"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(EnvLibrary, c.env)
			if got := candidates(c.named); !slices.Equal(got[:min(len(got), len(c.want))], c.want) {
				t.Errorf("got %q, want it to begin with %q", got, c.want)
			}
		})
	}
}

// The library finds its siblings beside itself, so a link to it is of no use, and a relative path of none for long.
func TestAbsolute(t *testing.T) {
	real := place(t, t.TempDir(), soname)
	link := filepath.Join(t.TempDir(), soname)
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{soname: soname, real: real, link: real} {
		if got, err := absolute(given); got != want || err != nil {
			t.Errorf("%s is taken as %s, %v; want %s", given, got, err, want)
		}
	}
	if _, err := absolute("nowhere"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is not there gives %v", err)
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		says   string
	}{
		"spins":     {Config{Name: "a", Progress: time.Microsecond}, "progress interval 1µs: want 100µs or more"},
		"backwards": {Config{Name: "a", Poll: -1}, "poll interval -1ns: want more than 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.setDefaults()
			if err := c.config.validate(); err == nil || err.Error() != c.says {
				t.Errorf("got %v, want %s", err, c.says)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("UCX_DEBUG_SIGNO", "SIGUSR2")
	t.Setenv("UCX_HANDLE_ERRORS", "")
	os.Unsetenv("UCX_HANDLE_ERRORS") // Setenv has it put back in the end
	if err := setEnvironment(); err != nil {
		t.Fatal(err)
	}
	if got := os.Getenv("UCX_DEBUG_SIGNO"); got != "SIGUSR2" {
		t.Errorf("what the user had set is %q", got)
	}
	if got := os.Getenv("UCX_HANDLE_ERRORS"); got != "none" {
		t.Errorf("UCX_HANDLE_ERRORS is %q", got)
	}
}

func TestStatus(t *testing.T) {
	err := error(&CallError{Call: "gen_notif", Status: StatusNotFound})
	if !errors.Is(err, StatusNotFound) || errors.Is(err, StatusBackend) {
		t.Error("the status is not found in the error")
	}
	if got := err.Error(); got != "nixl gen_notif: status -6: not known" {
		t.Errorf("the error is %q", got)
	}
	if got := Status(9).Error(); !strings.Contains(got, "9") {
		t.Errorf("an unknown status is %q", got)
	}
}

func metadataOf(name string) []byte {
	b := binary.LittleEndian.AppendUint64([]byte(metadataMagic+nameTag), uint64(len(name)))
	return append(append(b, name...), '|')
}

func FuzzAgentName(f *testing.F) {
	f.Add(metadataOf("engine"))
	f.Add(metadataOf(""))
	f.Add(metadataOf(strings.Repeat("x", 256)))
	f.Add([]byte("nixlSerDes|Agent\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, err := agentName(b)
		if err != nil {
			if !errors.Is(err, transfer.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if want := metadataOf(name); !strings.HasPrefix(string(b)+"|", string(want[:len(want)-1])) {
			t.Fatalf("%q was read out of %q", name, b)
		}
	})
}

// TestLibraryOfTests: tests of all packages find the library that the environment names.
func TestLibraryOfTests(t *testing.T) {
	t.Setenv(EnvLibrary, "somewhere")
	if got := transfertest.NIXLLibrary(t); got != "somewhere" {
		t.Errorf("the tests use %q", got)
	}
}
