package sidecar

import (
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd/dialect"
)

// TestConnectorHelp holds the help of --kv-connector to the table of hand-off protocols.
func TestConnectorHelp(t *testing.T) {
	field, _ := reflect.TypeFor[Engine]().FieldByName("Connector")
	if help := field.Tag.Get("help"); !strings.HasSuffix(help, ": "+dialect.Names()) {
		t.Errorf("--kv-connector says %q, and the table has %s", help, dialect.Names())
	}
}
