package stack

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"
)

// Sim returns a simulated engine (cmd/sim) on free ports of the loopback interface, from the folder of executables dir. Its
// addresses are "http", "admin" and "sidechannel". Flags are added to those that choose the ports.
func Sim(dir, name string, flags ...string) Program {
	return Program{
		Name: name,
		Path: filepath.Join(dir, "sim"),
		Args: append([]string{"--host=127.0.0.1", "--port=0", "--admin-port=0"}, flags...),
		Again: func(at map[string]string) []string {
			again := []string{"--port=" + portOf(at["http"]), "--admin-port=" + portOf(at["admin"])}
			if channel, ok := at["sidechannel"]; ok {
				again = append(again, "--side-channel-address="+channel)
			}
			if bootstrap, ok := at["bootstrap"]; ok { // a prefill engine of SGLang
				again = append(again, "--disaggregation-bootstrap-port="+portOf(bootstrap))
			}
			return again
		},
	}
}

// Sidecar returns a routing sidecar (cmd/sidecar) on free ports of the loopback interface, for the engine at the given
// host:port. Its addresses are "http", "metrics" and "admin". It may send prefill legs to all of loopback.
func Sidecar(dir, engine string, flags ...string) (Program, error) {
	host, port, err := net.SplitHostPort(engine)
	if err != nil {
		return Program{}, fmt.Errorf("putting a sidecar beside %q: %w", engine, err)
	}
	return Program{
		Name: "sidecar",
		Path: filepath.Join(dir, "sidecar"),
		Args: append([]string{
			"--host=127.0.0.1", "--port=0", "--metrics-port=0", "--admin-address=127.0.0.1:0",
			"--model-server-host=" + host, "--model-server-port=" + port, "--prefill-allow=127.0.0.0/8",
		}, flags...),
		Again: func(at map[string]string) []string {
			return []string{"--port=" + portOf(at["http"]), "--metrics-port=" + portOf(at["metrics"]), "--admin-address=" + at["admin"]}
		},
	}, nil
}

// EPP returns an endpoint picker (cmd/epp) on free ports of the loopback interface. Its addresses are "extproc", "health",
// "metrics" and "admin". The flags say where it finds its endpoints, all of which are taken to have Tandem's sidecar.
func EPP(dir string, flags ...string) Program {
	return Program{
		Name: "epp",
		Path: filepath.Join(dir, "epp"),
		Args: append([]string{
			"--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--admin-address=127.0.0.1:0",
			"--tandem-headers=always",
		}, flags...),
		Grace: 10 * time.Second, // a connection that sends nothing delays its end by 5 s
		Again: func(at map[string]string) []string {
			return []string{"--grpc-port=" + portOf(at["extproc"]), "--grpc-health-port=" + portOf(at["health"]),
				"--metrics-port=" + portOf(at["metrics"]), "--admin-address=" + at["admin"]}
		},
	}
}

// Gateway returns the embedded gateway (cmd/tandem gateway), which listens where the flags say. Its address is "http".
func Gateway(dir string, flags ...string) Program {
	return Program{
		Name:  "gateway",
		Path:  filepath.Join(dir, "tandem"),
		Args:  append([]string{"gateway"}, flags...),
		Grace: 10 * time.Second, // it lets running answers finish for 5 s
		Again: func(at map[string]string) []string { return []string{"--listen=" + at["http"]} },
	}
}

// portOf returns the port of a host:port.
func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
