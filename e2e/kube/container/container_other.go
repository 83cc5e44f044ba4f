//go:build !linux

package container

import (
	"context"
	"errors"
)

func (s *Sandbox) start(Spec) (*Container, error) { return nil, errors.ErrUnsupported }

func (c *Container) exec(context.Context, []string) ([]byte, int, error) {
	return nil, 0, errors.ErrUnsupported
}
