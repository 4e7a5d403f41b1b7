package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
)

type tokenCommand struct {
	New newToken `cmd:"" help:"Make a token. It is shown once; a control plane keeps only its hash."`
}

type newToken struct {
	Name    string `required:"" help:"The name of the token: logs and histories show it in place of the token. A token and its successor have the same name." placeholder:"NAME"`
	Role    string `required:"" enum:"viewer,editor,admin,node" help:"viewer reads, editor also changes, admin may do everything, node is for Envoys." placeholder:"ROLE"`
	Expires length `help:"For how long it is accepted, like 90d; for ever by default." placeholder:"DURATION"`
	Output  string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// Help returns the text below the flags.
func (newToken) Help() string {
	return `Put the line into the file that weir serve --tokens-file names: it is in force within seconds, without a restart. To replace a token, add the line of the new one under the same name, let all who have the old one use it, then remove the old line.`
}

// Run prints the token and the line for the tokens file.
func (c *newToken) Run(env *environment) error {
	var expires time.Time
	if life := time.Duration(c.Expires); life != 0 {
		if life < time.Second {
			return errors.New("--expires: must be at least 1s")
		}
		expires = time.Now().Add(life).UTC().Truncate(time.Second)
	}
	secret := auth.NewSecret()
	token, err := auth.NewToken(c.Name, c.Role, auth.Sum(secret), expires)
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return json.NewEncoder(env.Out).Encode(struct {
			Token string `json:"token"`
			Line  string `json:"line"`
		}{secret, token.Line()})
	}
	_, err = fmt.Fprintf(env.Out, "The token, which is shown only now:\n\n%s\n\nThe line for the tokens file:\n\n%s\n",
		secret, token.Line())
	return err
}
