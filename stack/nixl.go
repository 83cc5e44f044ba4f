package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// The transports of PDOptions.Transport.
const (
	TransportTCP  = "tcp"
	TransportNIXL = "nixl"
)

// ErrNoNIXL says that NIXL cannot be used here. The wrapping error says why, and what would help.
var ErrNoNIXL = errors.New("NIXL cannot be used")

// envLibrary is nixl.EnvLibrary; package nixl is not linked here.
const envLibrary = "TANDEM_NIXL_LIB"

// NIXLDir returns the folder, in a folder of executables, of the programs that speak NIXL. make nixl puts them there.
func NIXLDir(dir string) string { return filepath.Join(dir, "nixl") }

// NIXLLibrary returns the NIXL library that the environment names (TANDEM_NIXL_LIB, which programs of a stack do not inherit),
// or else the folder of the library in the checkout that has the current directory. It returns "" if there is neither; programs
// then search for it.
func NIXLLibrary() string {
	if path := os.Getenv(envLibrary); path != "" {
		return path
	}
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for up := ""; dir != up; dir = filepath.Dir(dir) {
		found, err := filepath.Glob(filepath.Join(dir, ".tools", "nixl", ".nixl_*.libs"))
		if err == nil && len(found) > 0 {
			return found[0]
		}
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return ""
		}
		up = dir
	}
	return ""
}

// SimTransport returns the flags of a simulated engine that moves its KV over a transport; see KeeperFlags.
func SimTransport(transport, library string) []string {
	if transport != TransportNIXL {
		return nil
	}
	flags := []string{"--transport=" + TransportNIXL}
	if library != "" {
		flags = append(flags, "--nixl-library="+library)
	}
	return flags
}

// netDevices is the variable that tells UCX on which networks it may listen.
const netDevices = "UCX_NET_DEVICES"

// transportEnv returns the environment that keeps the KV of simulated engines on this machine, unless the user has set it: by
// default, NIXL listens on all networks.
func (a *assembly) transportEnv() []string {
	if a.Transport != TransportNIXL || a.foreign() || os.Getenv(netDevices) != "" {
		return nil
	}
	return []string{netDevices + "=lo"}
}

// probeTimeout bounds the search for the library, which opens about 120 shared objects.
const probeTimeout = 30 * time.Second

// checkTransport sets the default transport, and checks that the parts which NIXL needs are there.
func (a *assembly) checkTransport(ctx context.Context) error {
	switch a.Transport {
	case "":
		a.Transport = TransportTCP
		return nil
	case TransportTCP:
		return nil
	case TransportNIXL:
	default:
		return fmt.Errorf("%q is not a transport: want %s or %s", a.Transport, TransportTCP, TransportNIXL)
	}
	if a.Library == "" {
		a.Library = NIXLLibrary()
	}
	programs := []string{"keeper"}
	if !a.foreign() {
		programs = append(programs, "sim")
	}
	for _, program := range programs {
		if _, err := os.Stat(filepath.Join(NIXLDir(a.Dir), program)); err != nil {
			return fmt.Errorf("%w: %w (make nixl builds the programs for it into bin/nixl; it takes a C compiler)", ErrNoNIXL, err)
		}
	}
	return a.probeNIXL(ctx)
}

// probeNIXL has the keeper open the library. The simulator finds the same one.
func (a *assembly) probeNIXL(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	flags := []string{"--probe", "--transport=" + TransportNIXL}
	if a.Library != "" {
		flags = append(flags, "--library="+a.Library)
	}
	probe := exec.CommandContext(ctx, filepath.Join(NIXLDir(a.Dir), "keeper"), flags...)
	var said bytes.Buffer
	probe.Env, probe.Stderr, probe.WaitDelay = append(ownEnvironment(), a.transportEnv()...), &said, pipeDelay
	err := probe.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	why := string(bytes.TrimSpace(said.Bytes()))
	if why == "" {
		why = fmt.Sprintf("%s: %v", probe.Path, err)
	}
	return fmt.Errorf("%w: %s (in a checkout, make nixl builds the programs for it, and make .tools/nixl fetches the library; "+
		"--nixl-library or %s name another)", ErrNoNIXL, why, envLibrary)
}
