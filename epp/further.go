package epp

// Further is what pages beside the metrics page say about an endpoint. It does not change.
type Further struct {
	// Models are those that the endpoint serves, adapters included; nil = not known.
	Models []Model `json:"models,omitempty"`
	// Attributes are the values of other producers than the extractor of the metrics page.
	Attributes Attributes `json:"attributes,omitempty"`
}

// Model is a model that an endpoint serves.
type Model struct {
	ID     string `json:"id"`
	Parent string `json:"parent,omitempty"` // the model that an adapter is for
}
