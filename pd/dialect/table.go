package dialect

import "strings"

// Table lists the hand-off protocols of this program.
var Table = []Row{
	{Name: "nixlv2", Aliases: []string{"nixl"}, New: newVLLMNIXL},
	{Name: "sglang", New: newSGLang},
	{Name: "shared-storage", Aliases: []string{"lmcache"}, New: newVLLMFiles},
	{Name: "mooncake", New: newVLLMMooncake},
	{Name: "nixl-push", New: newVLLMPush},
	{Name: "offloading", New: newVLLMOffloading},
	{Name: "trtllm", New: newTRTLLM},
	{Name: "trtllm-generation-first", New: newTRTLLMGenerationFirst},
}

// Row names a dialect. Names are llm-d's values of --kv-connector, where it has the protocol.
type Row struct {
	Name    string
	Aliases []string
	New     func(Options) Dialect
}

// New makes the dialect with a name or alias; ok is false if there is none.
func New(name string, o Options) (d Dialect, ok bool) {
	for _, row := range Table {
		if row.Name == name {
			return row.New(o), true
		}
		for _, a := range row.Aliases {
			if a == name {
				return row.New(o), true
			}
		}
	}
	return nil, false
}

// Names returns the names for messages and help.
func Names() string {
	names := make([]string, len(Table))
	for i, row := range Table {
		names[i] = row.Name
	}
	return strings.Join(names, ", ")
}
