package dialect_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/dialect/dialecttest"
)

// contracts says for each row of the table what the suite needs to know. A row without one fails.
var contracts = map[string]dialecttest.Case{
	"nixlv2": {
		Good: func([]byte) []byte { return []byte(`{"kv_transfer_params":` + handoff + `}`) },
		Bad:  []string{`{"kv_transfer_params":null}`, `{"kv_transfer_params":{}}`, `{"kv_transfer_params":` + priming + `}`},
		Own:  []string{"kv_transfer_params"},
	},
}

func TestContract(t *testing.T) {
	for _, row := range dialect.Table {
		t.Run(row.Name, func(t *testing.T) {
			c, ok := contracts[row.Name]
			if !ok {
				t.Fatal("the contract suite does not know this dialect")
			}
			c.Dialect = row.New(dialect.Options{})
			dialecttest.Run(t, c)
		})
	}
}
