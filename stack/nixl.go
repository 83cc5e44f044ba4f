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

// ErrNoNIXL says that NIXL cannot be used here. The error around it says why, and what would help.
var ErrNoNIXL = errors.New("NIXL cannot be used")

// envLibrary names the library in every program of transfer/nixl, which is not linked here.
const envLibrary = "TANDEM_NIXL_LIB"

// NIXLDir is the folder with the programs that speak NIXL, in a folder of executables: make nixl puts them there.
func NIXLDir(dir string) string { return filepath.Join(dir, "nixl") }

// NIXLLibrary gives the NIXL library that the environment names (TANDEM_NIXL_LIB), which programs of a stack do not see, or
// else the folder of the one that the checkout has, which the current directory lies in. "": neither; programs look for it.
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

// SimTransport has a simulated engine move its KV so; see KeeperFlags.
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

// netDevices is the variable by which UCX is told on which networks it may listen.
const netDevices = "UCX_NET_DEVICES"

// transportEnv holds what moves KV between simulated engines to this machine, unless the user has other plans: NIXL listens
// on all of its networks otherwise.
func (a *assembly) transportEnv() []string {
	if a.Transport != TransportNIXL || a.foreign() || os.Getenv(netDevices) != "" {
		return nil
	}
	return []string{netDevices + "=lo"}
}

// probeTimeout bounds the look for the library, which opens some 120 shared objects.
const probeTimeout = 30 * time.Second

// checkTransport fills in the transport, and looks whether there is what NIXL takes.
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

// probeNIXL has the keeper look for the library: what it finds, the simulator does.
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
