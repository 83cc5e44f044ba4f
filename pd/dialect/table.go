package dialect

import "strings"

// Table is the one list of the hand-off protocols in this binary.
var Table = []Row{
	{Name: "nixlv2", Aliases: []string{"nixl"}, New: newVLLMNIXL},
}

// Row names a dialect. Names are llm-d's values of --kv-connector.
type Row struct {
	Name    string
	Aliases []string
	New     func(Options) Dialect
}

// New makes the dialect of a name or alias; ok is false if there is none.
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

// Names lists the names for messages and help.
func Names() string {
	names := make([]string, len(Table))
	for i, row := range Table {
		names[i] = row.Name
	}
	return strings.Join(names, ", ")
}
