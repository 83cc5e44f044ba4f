package intake

import (
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/pd/request"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testConfig has limits that no test reaches.
var testConfig = Config{BodyPause: 30 * time.Second, BodyLimit: 64 << 20, BufferLimit: 512 << 20, Table: request.Base, Log: slog.New(slog.DiscardHandler)}
