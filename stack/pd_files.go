package stack

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/epp/config"
)

// writeFiles writes the files that the picker reads, and returns their names.
func (a *assembly) writeFiles() (configFile, endpointsFile string, err error) {
	dir, err := a.group.TempDir()
	if err != nil {
		return "", "", err
	}
	endpoints, err := a.endpoints()
	if err != nil {
		return "", "", err
	}
	endpointsFile = filepath.Join(dir, "endpoints.yaml")
	if err := os.WriteFile(endpointsFile, endpoints, 0o600); err != nil {
		return "", "", fmt.Errorf("writing the endpoints file: %w", err)
	}
	if a.Config != "" {
		return a.Config, endpointsFile, nil
	}
	data, err := a.pickerConfig()
	if err != nil {
		return "", "", fmt.Errorf("making the picker's configuration: %w", err)
	}
	configFile = filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(configFile, data, 0o600); err != nil {
		return "", "", fmt.Errorf("writing the picker's configuration: %w", err)
	}
	return configFile, endpointsFile, nil
}

// LogFile returns the name of the file, in PDOptions.LogDir, with the output of a program.
func LogFile(program string) string { return strings.ReplaceAll(program, " ", "-") + ".log" }

// log returns where the output of a program goes beside what Process has of it; nil: nowhere.
func (a *assembly) log(program string) (io.Writer, error) {
	if a.LogDir == "" {
		return nil, nil
	}
	return a.group.logFile(filepath.Join(a.LogDir, LogFile(program)))
}

// endpoint is an entry of the endpoints file.
type endpoint struct {
	Name    string            `yaml:"name"`
	Address string            `yaml:"address"`
	Port    uint16            `yaml:"port"`
	Labels  map[string]string `yaml:"labels"`
}

// endpoints is the endpoints file.
func (a *assembly) endpoints() ([]byte, error) {
	var list []endpoint
	for _, of := range []struct {
		role string
		pods []Pod
	}{{"prefill", a.pd.Prefill}, {"decode", a.pd.Decode}, {"prefill-decode", a.pd.Plain}} {
		for _, pod := range of.pods {
			address, err := netip.ParseAddrPort(pod.Address)
			if err != nil {
				return nil, fmt.Errorf("naming the endpoint %s: %w", pod.Name, err)
			}
			labels := map[string]string{"llm-d.ai/role": of.role, "llm-d.ai/engine-type": engineKinds[a.Engine].label}
			list = append(list, endpoint{pod.Name, address.Addr().String(), address.Port(), labels})
		}
	}
	return yaml.Marshal(map[string]any{"endpoints": list})
}

// sglangParsers have the picker read the calls that SGLang serves, its own among them.
var sglangParsers = []string{"openai-parser", "anthropic-parser", "sglanghttp-parser"}

// pickerConfig returns the picker's default with another threshold, and with a second endpoint in every answer, which the
// proxies try if the first is unreachable.
func (a *assembly) pickerConfig() ([]byte, error) {
	var document struct {
		Head    map[string]any   `yaml:",inline"`
		Plugins []map[string]any `yaml:"plugins"`
	}
	if err := yaml.Unmarshal(config.Default(), &document); err != nil {
		return nil, err
	}
	for _, plugin := range document.Plugins {
		switch plugin["type"] {
		case "prefix-based-pd-decider":
			plugin["parameters"] = map[string]any{"nonCachedTokens": a.Threshold}
		case "max-score-picker":
			plugin["parameters"] = map[string]any{"maxNumOfEndpoints": 2}
		}
	}
	if a.Engine == EngineSGLang {
		var refs []map[string]any
		for _, parser := range sglangParsers {
			document.Plugins = append(document.Plugins, map[string]any{"type": parser})
			refs = append(refs, map[string]any{"pluginRef": parser})
		}
		document.Head["requestHandler"] = map[string]any{"parsers": refs}
	}
	return yaml.Marshal(document)
}
