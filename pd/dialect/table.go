package dialect

import (
	"slices"
	"strings"
)

// Table lists the hand-off protocols of this program.
var Table = []Row{
	{Name: "nixlv2", Aliases: []string{"nixl"}, Engine: VLLM, Connectors: []string{"NixlConnector", "NixlPullConnector"}, New: newVLLMNIXL},
	{Name: "sglang", Engine: SGLang, New: newSGLang},
	{Name: "shared-storage", Aliases: []string{"lmcache"}, Engine: VLLM, Connectors: []string{"ExampleConnector", "LMCacheConnectorV1"}, New: newVLLMFiles},
	{Name: "mooncake", Engine: VLLM, Connectors: []string{"MooncakeConnector"}, New: newVLLMMooncake},
	{Name: "nixl-push", Engine: VLLM, Connectors: []string{"NixlPushConnector"}, New: newVLLMPush},
	{Name: "offloading", Engine: VLLM, Connectors: []string{"OffloadingConnector"}, New: newVLLMOffloading},
	{Name: "moriio", Engine: VLLM, Connectors: []string{"MoRIIOConnector"}, New: newVLLMMoRIIO},
	{Name: "trtllm", Engine: TRTLLM, New: newTRTLLM},
	{Name: "trtllm-generation-first", Engine: TRTLLM, New: newTRTLLMGenerationFirst},
}

// Row names a dialect. Names are llm-d's values of --kv-connector, where it has the protocol.
type Row struct {
	Name    string
	Aliases []string
	Engine  Engine // whose protocol it is
	// Connectors are the values of vLLM's kv_connector that speak it, the usual one first. With MultiConnector, the first of its
	// connectors that has parameters decides.
	Connectors []string
	New        func(Options) Dialect
}

// New makes the dialect with a name or alias; ok is false if there is none.
func New(name string, o Options) (d Dialect, ok bool) {
	row, ok := Find(name)
	if !ok {
		return nil, false
	}
	return row.New(o), true
}

// Find returns the row with a name or alias; ok is false if there is none.
func Find(name string) (row Row, ok bool) {
	for _, row := range Table {
		if row.Name == name || slices.Contains(row.Aliases, name) {
			return row, true
		}
	}
	return Row{}, false
}

// FindConnector returns the row of a value of vLLM's kv_connector; ok is false if no dialect is for it.
func FindConnector(connector string) (row Row, ok bool) {
	for _, row := range Table {
		if slices.Contains(row.Connectors, connector) {
			return row, true
		}
	}
	return Row{}, false
}

// Names returns the names for messages and help.
func Names() string {
	names := make([]string, len(Table))
	for i, row := range Table {
		names[i] = row.Name
	}
	return strings.Join(names, ", ")
}

// NamesOf returns the names of an engine's protocols, for messages.
func NamesOf(e Engine) string {
	var names []string
	for _, row := range Table {
		if row.Engine == e {
			names = append(names, row.Name)
		}
	}
	return strings.Join(names, " or ")
}
