package encode

import "strings"

// Connector is how encodings move from an encoder to the engine that computes the prompt.
type Connector struct {
	// Name is llm-d's value of --ec-connector.
	Name string
	// Params says that the other engines need ec_transfer_params to find an encoding. Without them they find it by the hash of the item.
	Params bool
}

// Connectors lists those of this program: vLLM's ECExampleConnector, which keeps encodings in files, and its ECCPUConnector with
// ec_enable_nixl.
var Connectors = []Connector{{Name: "ec-example"}, {Name: "ec-nixl", Params: true}}

// Find returns the connector with a name, nil if there is none.
func Find(name string) *Connector {
	for i := range Connectors {
		if Connectors[i].Name == name {
			return &Connectors[i]
		}
	}
	return nil
}

// Names returns the names for messages and help.
func Names() string {
	var names []string
	for _, c := range Connectors {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}
